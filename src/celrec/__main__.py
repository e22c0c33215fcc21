"""`python -m celrec` is the `celrec` command."""

import sys

from celrec.cli.main import main

sys.exit(main())
