/* Copyright 2026 The smdistributed-open authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Core-state probe: how near are two CPUs to each other at this moment?
 *
 * On a virtual machine the host may run two virtual CPUs on two hardware threads of one core now
 * and on two separate cores a minute later. Latency between ranks then changes two- to threefold,
 * although nothing in the guest changes. The probe tells these states apart by two signals:
 *
 *   flag_ns        one-way time of a flag between two threads pinned to the two CPUs. Hardware
 *                  threads of one core share the first-level cache: the flag moves faster there.
 *   compute_ratio  time of a multiply loop with both CPUs busy / time with one busy. About 1 on two
 *                  cores, clearly more on two hardware threads, which share the multipliers.
 *
 * memcpy2_gbps (bytes copied per second by both CPUs at once, buffers of 1 MiB) shows pressure from
 * neighbours on caches and memory; it is recorded and not used for the tag.
 *
 * Persistent: reads lines from stdin, answers each with one JSON line, and sleeps in read()
 * meanwhile, so that it costs nothing while libraries are measured. A probe takes about 1 ms.
 *
 * Build: cc -O2 -pthread -o probe probe.c      Usage: probe CPU_A CPU_B
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define WINDOWS 16
#define EXCHANGES 200
#define COPY_BYTES ((size_t)1 << 20)
#define COMPUTE_STEPS 20000

static struct {
  _Alignas(128) _Atomic uint64_t ping;
  _Alignas(128) _Atomic uint64_t pong;
  _Alignas(128) _Atomic uint64_t arrived[2];
  _Alignas(128) int cpu[2];
  double flagWindowNs[WINDOWS];
  double copySeconds[2];
  double computeTogether[2];
  double computeAlone;
  long preemptions[2];
} shared;

static char *source[2], *target[2];
static volatile uint64_t sink;

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void waitFor(_Atomic uint64_t* flag, uint64_t value) {
  while (atomic_load_explicit(flag, memory_order_acquire) < value) relax();
}

static void meet(int me, uint64_t step) {
  atomic_store_explicit(&shared.arrived[me], step, memory_order_release);
  waitFor(&shared.arrived[1 - me], step);
}

/* Four independent multiply chains fill a core's multiplier; two hardware threads share it. */
static double compute(void) {
  uint64_t a = 3, b = 5, c = 7, d = 11;
  double begin = now();
  for (int i = 0; i < COMPUTE_STEPS; i++) {
    a = a * 6364136223846793005u + 1;
    b = b * 6364136223846793005u + 3;
    c = c * 6364136223846793005u + 5;
    d = d * 6364136223846793005u + 7;
  }
  double seconds = now() - begin;
  sink = a ^ b ^ c ^ d;
  return seconds;
}

static double least(double a, double b) { return a < b ? a : b; }

static void* run(void* argument) {
  int me = (int)(intptr_t)argument;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(shared.cpu[me], &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
  meet(me, 1);
  for (uint64_t window = 0; window < WINDOWS; window++) {
    uint64_t first = window * EXCHANGES;
    double begin = now();
    for (uint64_t i = first + 1; i <= first + EXCHANGES; i++) {
      if (me == 0) {
        atomic_store_explicit(&shared.ping, i, memory_order_release);
        waitFor(&shared.pong, i);
      } else {
        waitFor(&shared.ping, i);
        atomic_store_explicit(&shared.pong, i, memory_order_release);
      }
    }
    if (me == 0) shared.flagWindowNs[window] = (now() - begin) / (2.0 * EXCHANGES) * 1e9;
  }
  shared.computeTogether[me] = 1;
  for (uint64_t round = 0; round < 4; round++) {
    meet(me, 2 + round);
    shared.computeTogether[me] = least(shared.computeTogether[me], compute());
  }
  shared.copySeconds[me] = 1;
  for (uint64_t round = 0; round < 4; round++) {
    meet(me, 6 + round);
    double begin = now();
    memcpy(target[me], source[me], COPY_BYTES);
    shared.copySeconds[me] = least(shared.copySeconds[me], now() - begin);
  }
  meet(me, 10);
  struct rusage usage;
  getrusage(RUSAGE_THREAD, &usage);
  shared.preemptions[me] = usage.ru_nivcsw;
  if (me == 0) {
    /* The other thread has left: this CPU computes with its sibling idle. */
    shared.computeAlone = 1;
    for (int round = 0; round < 5; round++) {
      double seconds = compute();
      if (round > 0) shared.computeAlone = least(shared.computeAlone, seconds);
    }
  }
  return NULL;
}

static int ascending(const void* a, const void* b) {
  double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: probe CPU_A CPU_B (got %d arguments)\n", argc - 1);
    return 2;
  }
  shared.cpu[0] = atoi(argv[1]);
  shared.cpu[1] = atoi(argv[2]);
  for (int i = 0; i < 2; i++) {
    source[i] = malloc(COPY_BYTES);
    target[i] = malloc(COPY_BYTES);
    if (!source[i] || !target[i]) return 1;
    memset(source[i], 1, COPY_BYTES);
    memset(target[i], 1, COPY_BYTES);
  }
  char line[64];
  while (fgets(line, sizeof line, stdin)) {
    shared.ping = shared.pong = shared.arrived[0] = shared.arrived[1] = 0;
    double begin = now();
    pthread_t threads[2];
    for (intptr_t i = 0; i < 2; i++)
      if (pthread_create(&threads[i], NULL, run, (void*)i)) return 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    qsort(shared.flagWindowNs, WINDOWS, sizeof(double), ascending);
    double together = shared.computeTogether[0] > shared.computeTogether[1]
                          ? shared.computeTogether[0]
                          : shared.computeTogether[1];
    double copy = shared.copySeconds[0] > shared.copySeconds[1] ? shared.copySeconds[0]
                                                                : shared.copySeconds[1];
    printf(
        "{\"flag_ns\":%.1f,\"flag_median_ns\":%.1f,\"compute_ratio\":%.3f,\"memcpy2_gbps\":%.2f,"
        "\"preemptions\":%ld,\"probe_ms\":%.2f}\n",
        shared.flagWindowNs[1], shared.flagWindowNs[WINDOWS / 2], together / shared.computeAlone,
        2.0 * (double)COPY_BYTES / copy / 1e9, shared.preemptions[0] + shared.preemptions[1],
        (now() - begin) * 1e3);
    fflush(stdout);
  }
  return 0;
}
