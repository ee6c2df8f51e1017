"""When tests of the C++ kernels run."""

import pytest

from headwise.ops.cpp import build

_REASON = build.unavailable_reason()
needs_kernels = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
