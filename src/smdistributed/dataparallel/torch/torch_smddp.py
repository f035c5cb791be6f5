# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Import this module for its effect: afterwards `torch.distributed` knows the backend `smddp`.

    import smdistributed.dataparallel.torch.torch_smddp
    torch.distributed.init_process_group(backend="smddp")

The import finds out who this process is and sets the variables that scripts read (`RANK`,
`LOCAL_RANK`, `SMDATAPARALLEL_LOCAL_RANK` and others, as far as they are missing), registers the
backend, and prints nothing. Importing it again changes nothing. Source: specification, section 4.1.

Errors: `SMDDPConfigInvalid` if an environment variable has a value that cannot work.
"""

from smdistributed.dataparallel.torch.registration import register

__all__: list[str] = []

register()
