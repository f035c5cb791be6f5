/* Copyright 2026 The smdistributed-open authors
 * SPDX-License-Identifier: Apache-2.0
 *
 * Floor of all_reduce (float32, SUM) for two ranks on one host: what the memory system allows when
 * no library is in the way. Two processes, pinned to two CPUs, with shared memory made before the
 * fork.
 *
 * Words: S is the buffer size in bytes per rank, a segment is the piece that moves at once ("chunk"
 * below on the command line, as everybody calls it there), a slot is one segment's place in a ring.
 *
 * Variants, with bytes touched per rank (read + written):
 *   flag       two ranks meet at a spin barrier; no data. The least time of any collective.
 *   memcpy2    each rank copies S bytes between private buffers, both at once (no collective).
 *   ideal      both user buffers lie in shared memory. Each rank adds one half and writes both
 *              copies: S read + S written, two barriers. Needs the user's memory to be ours.
 *   ideal_nt   the same with streaming stores, which pass by the caches; with AVX only, elsewhere
 *              it is `ideal`.
 *   staged     private user buffers. Copy a segment into the own ring, wait for the peer's segment,
 *              add it to the own buffer: 3 S read + 2 S written. Each rank reduces everything, no
 *              copy-out.
 *   staged_rs  reduce-scatter + all-gather by segments. Only the peer's half is copied in; the
 *              owner adds, keeps the sum and writes it back into the peer's slot; the peer copies
 *              it out:
 *              2 S read + 2 S written, but three flags per segment instead of two.
 *
 * Persistent: reads commands from stdin, answers each with one JSON line, sleeps in read() between.
 *   run VARIANT SEGMENT_KIB SIZE_BYTES INNER BATCHES   times of BATCHES batches of INNER calls;
 *                                                      each is seconds per call, the slower rank's
 *   check VARIANT SEGMENT_KIB SIZE_BYTES               compares the result with the expected sums
 *
 * Build: cc -O3 -march=native -o floor floor.c       Usage: floor MAX_BYTES CPU_A CPU_B
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#define SLOTS 4
#define MAX_SEGMENT ((size_t)512 << 10)
#define MAX_BATCHES 4096
#define LINE 128 /* two cache lines: neighbours are fetched in pairs */

typedef struct {
  _Alignas(LINE) _Atomic uint64_t value;
} Flag;

typedef struct {
  Flag met[2];     /* barrier count */
  Flag filled[2];  /* segments that the rank has published */
  Flag reduced[2]; /* segments that the rank has reduced */
  Flag mismatches[2];
  double seconds[2][MAX_BATCHES];
} Control;

typedef struct {
  char verb[8];
  char variant[16];
  size_t segmentBytes;
  size_t sizeBytes;
  int inner;
  int batches;
} Command;

static Control* control;
static int me, peer;
static size_t maxBytes;
static float* sharedBuffer[2]; /* user buffers of `ideal` */
static char* ring[2];
static float *buffer, *copyTarget;
static uint64_t metCount;
static uint64_t sequence; /* segments handled so far, the same on both ranks */
static size_t segmentBytes;

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

static inline void post(Flag* flag, uint64_t value) {
  atomic_store_explicit(&flag->value, value, memory_order_release);
}

static inline void waitFor(Flag* flag, uint64_t value) {
  while (atomic_load_explicit(&flag->value, memory_order_acquire) < value) relax();
}

static inline void barrier(void) {
  metCount++;
  post(&control->met[me], metCount);
  waitFor(&control->met[peer], metCount);
}

/* `restrict` holds: a user buffer and a ring slot never overlap. It lets the compiler vectorise. */
static void addInto(float* restrict sum, const float* restrict addend, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(float); i++) sum[i] += addend[i];
}

static void addIntoBoth(float* restrict a, float* restrict b, size_t bytes) {
  for (size_t i = 0; i < bytes / sizeof(float); i++) {
    float sum = a[i] + b[i];
    a[i] = sum;
    b[i] = sum;
  }
}

/* Both begin at a cache line. */
static void addIntoBothStreaming(float* restrict a, float* restrict b, size_t bytes) {
  size_t done = 0;
#if defined(__AVX__)
  for (; done + 32 <= bytes; done += 32) {
    float *to = a + done / sizeof(float), *toPeer = b + done / sizeof(float);
    __m256 sum = _mm256_add_ps(_mm256_load_ps(to), _mm256_load_ps(toPeer));
    _mm256_stream_ps(to, sum);
    _mm256_stream_ps(toPeer, sum);
  }
  _mm_sfence(); /* streaming stores are not ordered with the flag that tells of them */
#endif
  addIntoBoth(a + done / sizeof(float), b + done / sizeof(float), bytes - done);
}

/* Half `rank` of a piece, cut at a cache line so that the ranks never write to one line. */
static size_t halfBegin(size_t bytes, int rank) { return rank ? (bytes / 2) & ~(size_t)63 : 0; }
static size_t halfBytes(size_t bytes, int rank) {
  return rank ? bytes - halfBegin(bytes, 1) : halfBegin(bytes, 1);
}
static size_t segmentAt(size_t sizeBytes, size_t index) {
  size_t left = sizeBytes - index * segmentBytes;
  return left < segmentBytes ? left : segmentBytes;
}
static char* slotOf(int rank, uint64_t number) {
  return ring[rank] + (number % SLOTS) * MAX_SEGMENT;
}

static void flag(size_t sizeBytes) {
  (void)sizeBytes;
  barrier();
}

static void memcpy2(size_t sizeBytes) { memcpy(copyTarget, buffer, sizeBytes); }

static void ideal(size_t sizeBytes) {
  size_t begin = halfBegin(sizeBytes, me);
  barrier();
  addIntoBoth(sharedBuffer[me] + begin / 4, sharedBuffer[peer] + begin / 4,
              halfBytes(sizeBytes, me));
  barrier();
}

static void idealStreaming(size_t sizeBytes) {
  size_t begin = halfBegin(sizeBytes, me);
  barrier();
  addIntoBothStreaming(sharedBuffer[me] + begin / 4, sharedBuffer[peer] + begin / 4,
                       halfBytes(sizeBytes, me));
  barrier();
}

static void staged(size_t sizeBytes) {
  size_t segments = (sizeBytes + segmentBytes - 1) / segmentBytes;
  size_t published = 0;
  for (size_t i = 0; i < segments; i++) {
    /* Publish one segment ahead, so that the peer's copy-in runs while this rank adds. */
    for (; published < segments && published < i + 2; published++) {
      uint64_t number = sequence + published;
      if (number >= SLOTS) waitFor(&control->reduced[peer], number - SLOTS + 1);
      memcpy(slotOf(me, number), (char*)buffer + published * segmentBytes,
             segmentAt(sizeBytes, published));
      post(&control->filled[me], number + 1);
    }
    uint64_t number = sequence + i;
    waitFor(&control->filled[peer], number + 1);
    addInto(buffer + i * segmentBytes / 4, (const float*)slotOf(peer, number),
            segmentAt(sizeBytes, i));
    post(&control->reduced[me], number + 1);
  }
  sequence += segments;
}

/* A pipeline of three steps; step t works on segment i - t in turn i:
 *   0 copy the peer's half into the own slot, 1 reduce the own half, 2 copy the peer's sums out */
static void stagedReduceScatter(size_t sizeBytes) {
  size_t segments = (sizeBytes + segmentBytes - 1) / segmentBytes;
  for (size_t turn = 0; turn < segments + 2; turn++) {
    if (turn < segments) {
      uint64_t number = sequence + turn;
      size_t bytes = segmentAt(sizeBytes, turn), begin = halfBegin(bytes, peer);
      /* The own slot is free once this rank has copied the sums out of it: true SLOTS turns ago. */
      memcpy(slotOf(me, number), (char*)buffer + turn * segmentBytes + begin,
             halfBytes(bytes, peer));
      post(&control->filled[me], number + 1);
    }
    if (turn >= 1 && turn - 1 < segments) {
      uint64_t number = sequence + turn - 1;
      size_t bytes = segmentAt(sizeBytes, turn - 1), begin = halfBegin(bytes, me);
      waitFor(&control->filled[peer], number + 1);
      addIntoBoth(buffer + ((turn - 1) * segmentBytes + begin) / 4, (float*)slotOf(peer, number),
                  halfBytes(bytes, me));
      post(&control->reduced[me], number + 1);
    }
    if (turn >= 2) {
      uint64_t number = sequence + turn - 2;
      size_t bytes = segmentAt(sizeBytes, turn - 2), begin = halfBegin(bytes, peer);
      waitFor(&control->reduced[peer], number + 1);
      memcpy((char*)buffer + (turn - 2) * segmentBytes + begin, slotOf(me, number),
             halfBytes(bytes, peer));
    }
  }
  sequence += segments;
}

typedef struct {
  const char* name;
  void (*call)(size_t);
  int usesSharedBuffers;
  int reduces;
} Variant;

static const Variant kVariants[] = {
    {"flag", flag, 0, 0},     {"memcpy2", memcpy2, 0, 0},
    {"ideal", ideal, 1, 1},   {"ideal_nt", idealStreaming, 1, 1},
    {"staged", staged, 0, 1}, {"staged_rs", stagedReduceScatter, 0, 1},
};

static const Variant* variantNamed(const char* name) {
  for (size_t i = 0; i < sizeof kVariants / sizeof *kVariants; i++)
    if (!strcmp(kVariants[i].name, name)) return &kVariants[i];
  return NULL;
}

/* The variants use the flags differently: bring all to `sequence` before another one starts. */
static void levelFlags(void) {
  barrier();
  post(&control->filled[me], sequence);
  post(&control->reduced[me], sequence);
  barrier();
}

static void measure(const Variant* variant, const Command* command) {
  levelFlags();
  for (int i = 0; i < command->inner && i < 20; i++) variant->call(command->sizeBytes);
  for (int batch = 0; batch < command->batches; batch++) {
    barrier();
    double begin = now();
    for (int i = 0; i < command->inner; i++) variant->call(command->sizeBytes);
    control->seconds[me][batch] = (now() - begin) / command->inner;
  }
  barrier();
}

static void check(const Variant* variant, const Command* command) {
  float* data = variant->usesSharedBuffers ? sharedBuffer[me] : buffer;
  size_t elements = command->sizeBytes / sizeof(float);
  for (size_t i = 0; i < elements; i++) data[i] = (float)(i % 1009 + 1) * (float)(me + 1);
  levelFlags();
  variant->call(command->sizeBytes);
  levelFlags();
  uint64_t wrong = 0;
  for (size_t i = 0; variant->reduces && i < elements; i++)
    wrong += data[i] != 3.0f * (float)(i % 1009 + 1);
  post(&control->mismatches[me], wrong);
  /* Zeros stay zeros under repeated sums; anything else would grow to infinity while measured. */
  memset(data, 0, command->sizeBytes);
  barrier();
}

static void obey(const Command* command) {
  const Variant* variant = variantNamed(command->variant);
  segmentBytes = command->segmentBytes;
  if (!strcmp(command->verb, "run"))
    measure(variant, command);
  else
    check(variant, command);
}

static void answer(const Command* command) {
  if (!strcmp(command->verb, "run")) {
    printf("{\"seconds\":[");
    for (int i = 0; i < command->batches; i++) {
      double a = control->seconds[0][i], b = control->seconds[1][i];
      printf("%s%.9f", i ? "," : "", a > b ? a : b);
    }
    printf("]}\n");
  } else {
    printf("{\"mismatches\":%llu}\n",
           (unsigned long long)(control->mismatches[0].value + control->mismatches[1].value));
  }
  fflush(stdout);
}

static const char* faultIn(const Command* command) {
  if (strcmp(command->verb, "run") && strcmp(command->verb, "check"))
    return "verb must be run or check";
  if (!variantNamed(command->variant))
    return "variant must be flag, memcpy2, ideal, ideal_nt, staged or staged_rs";
  if (command->segmentBytes < 1024 || command->segmentBytes > MAX_SEGMENT)
    return "segment must be 1 to 512 KiB";
  if (command->sizeBytes > maxBytes || command->sizeBytes % 4)
    return "size must be a multiple of 4, at most MAX_BYTES";
  if (command->batches < 1 || command->batches > MAX_BATCHES || command->inner < 1)
    return "count out of range";
  return NULL;
}

static void* mapBytes(size_t bytes, int sharing) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("floor: mmap");
    exit(1);
  }
  return memory;
}

static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  sched_setaffinity(0, sizeof set, &set);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: floor MAX_BYTES CPU_A CPU_B (got %d arguments)\n", argc - 1);
    return 2;
  }
  maxBytes = (size_t)strtoull(argv[1], NULL, 10);
  control = mapBytes(sizeof *control, MAP_SHARED);
  for (int i = 0; i < 2; i++) {
    sharedBuffer[i] = mapBytes(maxBytes, MAP_SHARED);
    ring[i] = mapBytes(SLOTS * MAX_SEGMENT, MAP_SHARED);
  }
  int toPeer[2];
  if (pipe(toPeer)) return 1;
  pid_t child = fork();
  if (child < 0) return 1;
  me = child == 0;
  peer = 1 - me;
  pin(atoi(argv[2 + me]));
  if (me == 1) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a peer that is killed must not leave this rank spinning */
    close(toPeer[1]);
  }
  buffer = mapBytes(maxBytes, MAP_PRIVATE);
  copyTarget = mapBytes(maxBytes, MAP_PRIVATE);
  memset(buffer, 0, maxBytes);
  memset(copyTarget, 0, maxBytes);
  memset(sharedBuffer[me], 0, maxBytes);
  memset(ring[me], 0, SLOTS * MAX_SEGMENT);
  barrier();

  Command command;
  if (me == 1) {
    while (read(toPeer[0], &command, sizeof command) == (ssize_t)sizeof command) obey(&command);
    _exit(0);
  }
  char line[256];
  while (fgets(line, sizeof line, stdin)) {
    unsigned long segmentKib = 0, sizeBytes = 0;
    memset(&command, 0, sizeof command);
    command.inner = command.batches = 1;
    sscanf(line, "%7s %15s %lu %lu %d %d", command.verb, command.variant, &segmentKib, &sizeBytes,
           &command.inner, &command.batches);
    command.segmentBytes = segmentKib << 10;
    command.sizeBytes = sizeBytes;
    const char* fault = faultIn(&command);
    if (fault) {
      printf("{\"error\":\"%s\"}\n", fault);
      fflush(stdout);
      continue;
    }
    if (write(toPeer[1], &command, sizeof command) != (ssize_t)sizeof command) return 1;
    obey(&command);
    answer(&command);
  }
  close(toPeer[1]);
  waitpid(child, NULL, 0);
  return 0;
}
