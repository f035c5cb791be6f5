# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""Every variable that this package reads, once: its name, its default and what it means.

From this list come the names that `variable_names` knows and the table of docs/environment.md
(`tools/settings_table.py` writes it there; a test compares). Which values are allowed,
`settings.Settings` says where it reads them, unless the engine or the launcher does.
"""

from typing import NamedTuple

__all__ = ["VARIABLES", "Variable", "table"]


class Variable(NamedTuple):
    """One variable, or some that belong together.

    Attributes:
        names: in full.
        default: Markdown; what a user would write to have the default, or words where there is no
            such text.
        meaning: Markdown; links are relative to docs/.
    """

    names: tuple[str, ...]
    default: str
    meaning: str


VARIABLES = (
    Variable(
        ("SMDDP_TIMEOUT_SECONDS",),
        "1800",
        "how long an operation, or the start of the job, may wait for other ranks; an argument "
        "`timeout=` of the script goes first",
    ),
    Variable(
        ("SMDDP_TRANSPORT",),
        "`auto`",
        "CPU tensors: `auto` (shared memory within a host, TCP between), `shm`, `tcp`; CUDA "
        "tensors: `auto`, `nccl`, `staged` ([cuda.md](cuda.md)); one of each, comma separated",
    ),
    Variable(
        ("SMDDP_ALGORITHM",),
        "`auto`",
        "ask for an algorithm, e.g. `all_reduce=staged`: on one host `one_shot`, `staged`, "
        "`shared`, over several `hierarchical/` with `exchange`, `doubling`, `direct`, "
        "`halving_doubling`, `ring`, and `direct` for `all_gather` and `reduce_scatter`; where "
        "one is not possible, the choice is as without it (`explain()` says which it was)",
    ),
    Variable(
        ("SMDDP_INTERFACE",),
        "`auto`",
        "network interfaces or address prefixes for TCP, comma separated; all that match are "
        "used, the first is the main one; `^name` excludes. `auto`: the one that leads to the "
        "rendezvous and those like it (never loopback, bridges of containers, or tunnels beside "
        "hardware). What was chosen is logged at level INFO",
    ),
    Variable(
        ("SMDDP_TCP_CONNECTIONS",),
        "1",
        "TCP connections between two ranks over each interface, 1 to 16; more pay where a network"
        " limits what one connection may carry",
    ),
    Variable(
        ("SMDDP_TCP_CONGESTION",),
        "`auto`",
        "congestion control of TCP connections between ranks: `auto` (the system's, but CUBIC "
        "instead of BBR, whose timers cost processor time), or a name that the kernel allows",
    ),
    Variable(
        ("SMDDP_KERNELS",),
        "best",
        "instruction set of reductions: `scalar`, `baseline`, `avx2`, `avx512`",
    ),
    Variable(
        ("SMDDP_TOKEN", "SMDDP_TOKEN_FILE"),
        "set by smddprun",
        "the job's secret, proven at the rendezvous and on every TCP connection; see "
        "[security.md](security.md)",
    ),
    Variable(
        ("SMDDP_RUN_ID",),
        "set by smddprun",
        "which job a rank belongs to: the same text on all ranks of a job, and another one in "
        "each job; see [security.md](security.md#two-jobs-at-one-port)",
    ),
    Variable(
        ("SMDDP_STALL_SECONDS",),
        "30",
        "a rank that waits so long in one operation writes where the others are; 0: never "
        "([troubleshooting.md](troubleshooting.md))",
    ),
    Variable(
        ("SMDDP_MESSAGE_LIMIT_MB",),
        "0",
        "MiB of messages of a pipeline that a rank has posted and others have not taken; on one "
        "host, where messages from 8 KiB on are used where their sender has put them, also those "
        "that others keep tensors of; one more is an error that says so; 0: no limit but that of "
        "the schedule",
    ),
    Variable(
        ("SMDDP_SIGNAL_REPORT",),
        "1",
        "SIGUSR1 prints the flight record; 0: the signal is left alone",
    ),
    Variable(
        ("SMP_REPORT",),
        "off",
        "file for what a pipeline does: `runs/report.json` makes rank 3 write "
        "`runs/report.3.json`; see [pipeline_report.md](pipeline_report.md)",
    ),
    Variable(
        ("SMP_CHECK_INPUTS",),
        "1",
        "ranks of one pipeline compare the batches that they feed, and warn if they differ; 0: "
        "they do not; [TensorFlow](model_parallel_tensorflow.md#what-is-equal-to-one-process)",
    ),
    Variable(
        ("SMDDP_TRACE",),
        "off",
        "file for a timeline: `runs/trace.json` makes rank 3 write `runs/trace.3.json`; see "
        "[tracing.md](tracing.md)",
    ),
    Variable(
        ("SMDDP_BUCKET_CAP_MB",),
        "25",
        "MiB of gradients that the [legacy DDP](legacy_api.md) and [TensorFlow](tensorflow.md) "
        "reduce together if `bucket_cap_mb` is not given",
    ),
    Variable(
        ("SMDDP_TF_OPERATIONS",),
        "`auto`",
        "how TensorFlow runs collectives: `kernels` (asynchronous), `python` (functions in the "
        "graph), `auto` (kernels where this TensorFlow takes them)",
    ),
    Variable(
        ("SMDDP_HOROVOD",),
        "set by smddprun",
        "`stand-in`, in jobs of smddprun and `fit()`: where no Horovod is installed, `import "
        "horovod` finds that of this package ([horovod.md](horovod.md)); `off`: it does not",
    ),
    Variable(
        ("SMDDP_CPU_SHIM",),
        "`auto`",
        "scripts written for GPUs on machines without: `auto`, `off`, `full`; see "
        "[cpu_shims.md](cpu_shims.md)",
    ),
    Variable(
        ("SMDDP_TLS_CERT", "SMDDP_TLS_KEY", "SMDDP_TLS_CA"),
        "",
        "PEM files: TCP connections between ranks, and the rendezvous of `collectives.init()`, "
        "use TLS 1.3; all three or none; see [security.md](security.md)",
    ),
    Variable(
        ("SMDDP_DETERMINISTIC",),
        "0",
        "1: sums over more than 16 hosts combine the hosts in the same order whatever the size, "
        "so that another bucket size gives the same bits; over fewer hosts, and on one, they do "
        "in any case ([architecture.md](architecture.md))",
    ),
    Variable(
        ("SMDDP_ZERO_COPY",),
        "1",
        "1: gradient buckets of torch's `DistributedDataParallel`, buffers of FSDP2 that ask for "
        "it and tensors of `empty_shared` lie in memory that the ranks of a host share; 0: in "
        "ordinary memory; recurring: other tensors that recur in collectives move there too, "
        "which has dangers; see [zero_copy.md](zero_copy.md)",
    ),
    Variable(
        ("SMDDP_AG_SCRATCH_BUFFER_SIZE_BYTES", "SMDDP_AG_SORT_BUFFER_SIZE_BYTES"),
        "",
        "accepted and checked; no effect in this release",
    ),
)


def table() -> str:
    """Returns the list as the Markdown table of docs/environment.md, without a last newline."""
    rows = [
        f"| {', '.join(f'`{name}`' for name in names)} | {default} | {meaning} |"
        for names, default, meaning in VARIABLES
    ]
    return "\n".join(["| Variable | Default | Meaning |", "| --- | --- | --- |", *rows])
