"""When tests of the C++ kernels run."""

from __future__ import annotations

import pytest

from headwise.kernels import native

_REASON = native.unavailable_reason()
needs_kernels = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
