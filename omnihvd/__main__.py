import sys

from omnihvd.cli import main

sys.exit(main())
