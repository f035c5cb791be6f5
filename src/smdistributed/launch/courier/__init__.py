# Copyright 2026 The smdistributed-open authors
# SPDX-License-Identifier: Apache-2.0
"""A host on another machine, which shares no file with the job's process.

A courier runs there. What the host needs goes to it, and what happens comes back, as messages on
its standard input and output. The job's process keeps what it tells in the job's directory, where
it looks as if the host were here.

messages    what they say, and how it is written
host        the courier: the agent of a host, and what is to be told of it
folder      of the courier, which goes with it
telling     what is new in files
mirror      the other end
sending     what a host needs
keeping     checkpoints and the like, which are kept on the other end
links       what carries the bytes
listening   messages of the other end, and its silence; on both ends
files       files in pieces, on both ends
lines       messages as lines, where a log is all that comes back
"""
