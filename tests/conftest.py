"""An internal error of the audit fails a test instead of becoming a note in its report."""

import os

os.environ.setdefault("PRECISIONLAB_STRICT", "1")
