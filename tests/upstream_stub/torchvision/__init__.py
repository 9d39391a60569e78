"""Stands in front of an installed torchvision whose compiled half does not fit the installed torch.

Its Python half asks torch about two operators of the compiled half while it is imported, and works
without them. They are declared here, and never called; then the installed package takes over. This
folder must come first on `sys.path`, which the workers share.
"""

import importlib.machinery
import sys
from pathlib import Path

import torch

_LIBRARY = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

_here = Path(__file__).resolve().parent.parent
_path = [entry for entry in sys.path if Path(entry or ".").resolve() != _here]
_spec = importlib.machinery.PathFinder.find_spec(__name__, _path)
if _spec is None or _spec.loader is None:
    raise ModuleNotFoundError("torchvision is not installed", name="torchvision")
__file__ = _spec.origin
__path__ = list(_spec.submodule_search_locations)
exec(_spec.loader.get_code(__name__), globals())  # the package itself, under its own name
