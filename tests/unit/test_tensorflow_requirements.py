# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""What model parallelism uses of TensorFlow and Keras that is not public: more is a decision.

A new release may lack any of it. The table in requirements.py has what can be looked up at the
import; the lists below have attributes of objects, and modules of the Kerases.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOM = Path(__file__).parents[2] / "src/smdistributed/modelparallel/tensorflow"
TABLE = ROOM / "remedies/requirements.py"

# Attributes of objects of TensorFlow and Keras: what they are.
ATTRIBUTES = {
    "_DummyThread": "of Python: a thread that it has not started",
    "_add_control_dependencies": "of a FuncGraph: branches and loops run what has effects",
    "_attached_dependencies": "a tf.train.Checkpoint's, on which nothing else may depend",
    "_built": "an optimizer's, and a random generator's, of tf-keras",
    "_call_has_training_arg": "a layer's",
    "_checkpoint": "a tf.train.CheckpointManager's; of BackupAndRestore",
    "_checkpoint_interval": "a tf.train.CheckpointManager's",
    "_compile_loss": "of a compiled model, Keras 3",
    "_compute_current_learning_rate": "an optimizer's, of tf-keras",
    "_compute_loss": "of a model, Keras 3",
    "_create_all_weights": "a legacy optimizer's, of tf-keras",
    "_distributed_dataset": "of the iterator that fit has, Keras 3",
    "_flat_losses": "of a compiled model, Keras 3",
    "_graph_view": "of the saver of a tf.train.Checkpoint",
    "_handle_data": "a resource's dtype",
    "_index_dict": "an optimizer's, of tf-keras: places of slots",
    "_init_fn": "a tf.train.CheckpointManager's",
    "_init_seed": "an initializer's, of Keras 3",
    "_initial_seed": "a SeedGenerator's",
    "_initial_epoch": "a model's, Keras 3: where fit begins",
    "_iterations": "an optimizer's",
    "_keep_checkpoint_every_n_hours": "a tf.train.CheckpointManager's",
    "_loss_scale": "a LossScaleOptimizer's, of tf-keras",
    "_loss_tracker": "of a compiled model, Keras 3",
    "_losses": "of a compiled loss",
    "_max_to_keep": "a tf.train.CheckpointManager's",
    "_maybe_delete": "a tf.train.CheckpointManager's",
    "_maybe_init": "a random generator's, of tf-keras",
    "_model": "a callback's, Keras 3",
    "_num_elements": "an eager tensor's, without its shape",
    "_numpy": "an eager tensor's memory, not copied",
    "_original_op": "of which operation another one is a gradient",
    "_prefix": "a tf.train.CheckpointManager's",
    "_random_generator": "an initializer's, of tf-keras",
    "_resolve_auto_jit_compile": "of a model, Keras 3",
    "_rng": "of eager random numbers",
    "_saver": "of a tf.train.Checkpoint",
    "_seed": "of eager random numbers; of a generator",
    "_SEED_GENERATOR": "of tf-keras",
    "_shape": "a keras.Variable's, while it is made",
    "_slots": "a legacy optimizer's, of tf-keras",
    "_step_counter": "a tf.train.CheckpointManager's",
    "_tape": "what a tf.GradientTape records with; None when it has been used",
    "_trackable_children": "what a checkpoint has of an object",
    "_trainable_variables": "an optimizer's, of Keras 3",
    "_validate_target_and_loss": "of a model, tf-keras",
    "_value": "the tf.Variable in a keras.Variable",
    "_var_key": "an optimizer's, of tf-keras",
    "_variable": "that under mixed precision, of tf-keras",
    "_variable_creator_scope": "a graph's, with a priority",
}
OF_KERAS = {
    ("keras.src.backend", "random"),
    ("keras.src.backend.common", "global_state"),
    ("keras.src.random.seed_generator", "GLOBAL_SEED_GENERATOR"),
    ("keras.src.random.seed_generator", "global_seed_generator"),
    ("tf_keras.src", "backend"),
    ("tf_keras.src.optimizers.legacy.optimizer_v2", "_var_key"),
}


def _used() -> Iterator[str]:
    for path in ROOM.rglob("*.py"):
        if path == TABLE:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tensorflow."):
                yield from (f"{node.module}.{each.name}" for each in node.names)
            elif isinstance(node, ast.Attribute):
                path_of = ast.unparse(node)
                if path_of.startswith("tf.__internal__."):
                    yield path_of.replace("tf.", "tensorflow.", 1)


def test_the_table_has_all_that_is_not_public() -> None:
    (assigned,) = (
        node.value
        for node in ast.parse(TABLE.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NOT_PUBLIC"
    )
    assert isinstance(assigned, ast.Tuple)
    table = [".".join(ast.literal_eval(entry)) for entry in assigned.elts]
    used = set(_used())
    assert used
    missing = [
        each for each in used if not any(f"{entry}.".startswith(f"{each}.") for entry in table)
    ]
    assert not missing, missing


def test_of_keras_these_modules_are_not_public() -> None:
    imported = {
        (node.module, each.name)
        for path in ROOM.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(("keras.src", "tf_keras.src"))
        for each in node.names
    }
    assert imported == OF_KERAS


def test_these_attributes_are_not_public() -> None:
    trees = [ast.parse(path.read_text()) for path in ROOM.rglob("*.py")]
    methods = set(_methods(trees))
    found = {
        name
        for tree in trees
        for name in set(_private_attributes(tree)) - set(_defined_in(tree)) - methods
    }
    assert found == ATTRIBUTES.keys()


def _private_attributes(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            name = str(node.args[1].value)
        else:
            continue
        if name.startswith("_") and not name.startswith(("__", "_smp_")):
            yield name


def _defined_in(tree: ast.AST) -> Iterator[str]:
    """What a module itself has, and the objects of its classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) == "self":
                yield node.attr
        elif isinstance(node, ast.Constant) and str(node.value).startswith("_smp_"):
            yield str(node.value)


def _methods(trees: list[ast.Module]) -> Iterator[str]:
    """Of the library's classes, which have bases in other rooms; and of Python's."""
    yield from ("_getframe", "_make")
    paths = [path for room in ("containers", "job") for path in (ROOM.parent / room).glob("*.py")]
    shared = [ast.parse(path.read_text()) for path in paths]
    for tree in shared:
        yield from _defined_in(tree)
    for tree in (*trees, *shared):
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name
