"""The `celrec` command: words in, words out, no logic."""
