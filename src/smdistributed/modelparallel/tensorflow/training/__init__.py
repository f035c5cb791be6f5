# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Training by Keras: `compile`, `fit`, `evaluate`, `predict` and the `..._on_batch` of a cut model.

`keras_model` has the methods, `steps` the steps that they run inside: `train_step` computes
gradients in one, and where Keras calls the model for `evaluate` or `predict`, the call is one.
Loss of a training step and gradients are means over the microbatches; metrics come of the merged
outputs, outside of the step, on every rank alike. `batches` fills batches up that do not divide,
`callbacks` sees to those that write files, `together` to ranks that do something else.

Source: TensorFlow modelparallel specification, section 5.4.
"""
