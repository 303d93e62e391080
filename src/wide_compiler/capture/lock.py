"""One capture at a time: torch.export swaps `nn.Module.__call__` and its own flags while it works."""

import threading

CAPTURE = threading.RLock()
