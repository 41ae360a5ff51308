import sys
from pathlib import Path

# The bad network files are shared with the tests of the reader.
sys.path.append(str(Path(__file__).resolve().parents[1] / "topology"))
