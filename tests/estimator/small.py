"""What makes training quick."""

SMALL = {"rank": 3, "compression": "4"}
