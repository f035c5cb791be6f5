# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""16-bit training: `fp16` or `bf16` in the configuration.

`casting`: the model computes in 16 bits, what enters it is cast down, what leaves it up to fp32.
`loss_scaler`: the number that the loss is multiplied by, so that small gradients survive fp16.
`masters`: of each 16-bit parameter a copy in fp32, which the user's optimizer updates.
`optimizer`: what `smp.DistributedOptimizer` returns then; it has the parts above.

One step, on every rank; all but the last line once per optimizer step:

    model.backward(loss)     the gradient of the loss is weight of the microbatch x loss scale
    master.grad              = gradient in fp32 / loss scale; was one of them infinite or NaN?
    all ranks agree          one number: if any found such, all skip the rest
    inner optimizer.step()   on masters, and on parameters that are fp32 themselves
    parameter                = master, rounded
    loss scaler              smaller after a skip, larger after many steps without

Source: modelparallel specification, section 6.7.
"""
