"""``python -m src.audit RUN_DIR`` at the repository's root is the same as ``flnl audit RUN_DIR``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # import the package beside this file, installed or not

from flnl.commands.audit import main

if __name__ == "__main__":
    main()
