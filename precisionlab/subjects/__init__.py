"""What is audited: ``Subject``, how it is found in a ``model.py``, and the training loop that runs it in low precision.

``subject``, ``words`` and ``target`` need no torch, so that a missing file or a misspelt dtype is reported at once; ``loader``,
``batches``, ``loops`` and ``run`` do.
"""

from precisionlab.subjects.subject import Subject

__all__ = ["Subject"]
