# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters without memory: what made their values is noted, and done again where they are needed.

While `recording` lasts, a tensor that becomes a parameter of a module moves to the meta device,
which has shapes and no data. What is computed with it is computed for real, in memory that the next
parameter takes over, so constructors run as ever, whatever they do, and random numbers are drawn in
the order that they would be without us. Noted are the operations that wrote to a tensor, with the
state of the random generator before each: that is all it takes to compute it once more, later, on
the one rank that wants it.

    sources     what is known of the values, by memory
    values      doing it again
    recording   noting it
    disguise    what looks at tensors past all operations

Words: a *source* is all that is known of the values of one piece of memory: those operations, its
*notes*. A tensor that refers to such memory is *tracked*, one without data is *delayed*. Tensors
that came from elsewhere (NumPy, a file, an earlier one) have no source; what is computed from these
alone has none either, and stays real as a parameter.

Cost: one pass over the initialisation for all parameters, as without us, and one more for those
that are needed; memory for one parameter at a time, and about 5 KB for each random operation.

Source: modelparallel specification, section 6.5.
"""

from smdistributed.modelparallel.torch.delayed_initialization.disguise import Disguise
from smdistributed.modelparallel.torch.delayed_initialization.recording import (
    has_delayed,
    noting_changes,
    record_until_wrapped,
    recording,
    stop_recording,
)
from smdistributed.modelparallel.torch.delayed_initialization.sources import (
    drop_expired,
    is_delayed,
    plainly,
)
from smdistributed.modelparallel.torch.delayed_initialization.values import (
    Values,
    materialise,
    replace_data,
)

__all__ = [
    "Disguise",
    "Values",
    "drop_expired",
    "has_delayed",
    "is_delayed",
    "materialise",
    "noting_changes",
    "plainly",
    "record_until_wrapped",
    "recording",
    "replace_data",
    "stop_recording",
]
