"""``python -m src.main method=fedcorr noise.rho=0.6`` at the repository's root is the same as ``flnl method=...``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # import the package beside this file, installed or not

from flnl.__main__ import main

if __name__ == "__main__":
    main()
