// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <map>
#include <mutex>
#include <new>
#include <string>

#include "common/error.h"
#include "common/fork.h"
#include "common/per_process.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace smd::transport::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::uint64_t kMagic = 0x34304e4f49474552;  // "REGION04"

struct Header {
  std::uint64_t magic;
  std::uint64_t size;
  std::uint64_t stagingBytes;  // of each rank
  std::uint64_t arenaBytes;    // likewise
  AbortBlock abort;
};
static_assert(sizeof(Header) <= kPage);

constexpr std::size_t roundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr std::size_t kCellsStride = roundUp(sizeof(RankCells), kPage);
constexpr std::size_t kRingStride = roundUp(sizeof(RingControl), kPage) + kRingBytes;

struct Layout {
  Layout(std::size_t size, std::size_t stagingBytes)
      : cells(kPage),
        slots(cells + size * kCellsStride),
        staging(slots + size * 2 * kSlotBytes),
        rings(staging + size * stagingBytes),
        arenas(roundUp(rings + size * size * kRingStride, kHugePage)) {}
  std::size_t cells, slots, staging, rings, arenas;
};

// Regions of this process by inode, so that ranks that are threads share one mapping.
struct Registry {
  std::mutex mutex;
  std::map<ino_t, std::weak_ptr<Region>> regions;
};
Registry& registry() {
  static PerProcess<Registry> instance;
  return instance.get();
}

struct stat statusOf(const FileDescriptor& descriptor) {
  struct stat status;
  if (fstat(descriptor.get(), &status) != 0) throw systemError("fstat(region)");
  return status;
}

std::size_t totalBytes(int size, std::size_t stagingBytes, std::size_t arenaBytes) {
  return Region::bytesWithoutArenas(size, stagingBytes) +
         static_cast<std::size_t>(size) * arenaBytes;
}

// Null if there is no room.
std::byte* map(const FileDescriptor& descriptor, int size, std::size_t stagingBytes,
               std::size_t arenaBytes) {
  const std::size_t total = totalBytes(size, stagingBytes, arenaBytes);
  void* address =
      mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor.get(), 0);
  if (address == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(address);
  // A forked child (a DataLoader worker) must not be able to write where its parent communicates.
  // In place of the arenas it gets a private copy: tensors of the application lie there.
  madvise(base, total, MADV_DONTFORK);
  // Where the system lets shared memory have huge pages, large buffers profit; elsewhere (most
  // systems today) this does nothing.
  const std::size_t begin = Region::bytesWithoutArenas(size, stagingBytes);
  if (arenaBytes != 0) {
    madvise(base + begin, total - begin, MADV_HUGEPAGE);
    // A core dump reads what it writes, and reading would give every hole of an arena a page.
    madvise(base + begin, total - begin, MADV_DONTDUMP);
    const ForkGuard guard;
    registerPrivateCopy(base + begin, total - begin, descriptor.get(), static_cast<off_t>(begin),
                        guard);
  }
  return base;
}

// A page of a private mapping shows what is in the file until it is written to. So each is written
// to once, with what is there: in a way that loses nothing that other threads write meanwhile.
bool bringOwnPages(std::byte* address, std::size_t bytes) {
  int status;
  do {
    status = madvise(address, bytes, MADV_POPULATE_WRITE);
  } while (status != 0 && (errno == EINTR || errno == EAGAIN));
  if (status == 0) return true;
  if (errno != EINVAL) return false;  // no memory
  for (std::size_t at = 0; at < bytes; at += kPage) {
    std::atomic_ref(*reinterpret_cast<unsigned char*>(address + at)).fetch_add(0);
  }
  return true;
}

Error mapError(int size, std::size_t stagingBytes) {
  return systemError("ftruncate or mmap(region of " +
                     std::to_string(Region::bytesWithoutArenas(size, stagingBytes)) + " bytes)");
}

}  // namespace

std::size_t Region::bytesWithoutArenas(int size, std::size_t stagingBytes) {
  return Layout(static_cast<std::size_t>(size), stagingBytes).arenas;
}

std::shared_ptr<Region> Region::create(int size, std::size_t arenaBytes, std::size_t stagingBytes) {
  FileDescriptor descriptor = FileDescriptor::fromCall(
      [] { return memfd_create("smdistributed", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!descriptor.isOpen()) throw systemError("memfd_create");
  const auto sizeAndMap = [&descriptor, size,
                           stagingBytes](std::size_t bytesOfArena) -> std::byte* {
    const auto total = static_cast<off_t>(totalBytes(size, stagingBytes, bytesOfArena));
    return ftruncate(descriptor.get(), total) == 0
               ? map(descriptor, size, stagingBytes, bytesOfArena)
               : nullptr;
  };
  std::byte* base = sizeAndMap(arenaBytes);
  if (base == nullptr && arenaBytes != 0) base = sizeAndMap(arenaBytes = 0);
  if (base == nullptr) throw mapError(size, stagingBytes);
  // Nobody may shrink it under a reader's feet (SIGBUS).
  fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  const ino_t inode = statusOf(descriptor).st_ino;
  std::shared_ptr<Region> region(
      new Region(std::move(descriptor), size, stagingBytes, base, arenaBytes));
  auto* header = new (base) Header{};
  header->size = static_cast<std::uint64_t>(size);
  header->stagingBytes = stagingBytes;
  header->arenaBytes = arenaBytes;
  const Layout layout(static_cast<std::size_t>(size), stagingBytes);
  for (int index = 0; index < size; ++index) {
    new (base + layout.cells + static_cast<std::size_t>(index) * kCellsStride) RankCells{};
  }
  header->magic = kMagic;  // rings and arenas: zero bytes are their initial state
  std::lock_guard lock(registry().mutex);
  registry().regions[inode] = region;
  return region;
}

std::shared_ptr<Region> Region::attach(FileDescriptor descriptor, int size) {
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().regions, [](const auto& entry) { return entry.second.expired(); });
  const struct stat status = statusOf(descriptor);
  if (auto known = registry().regions[status.st_ino].lock();
      known != nullptr && known->size() == size) {
    return known;
  }
  struct {
    std::uint64_t magic, size, stagingBytes, arenaBytes;
  } header{};
  static_assert(offsetof(Header, arenaBytes) == 3 * sizeof(std::uint64_t));
  if (pread(descriptor.get(), &header, sizeof header, 0) != sizeof header ||
      header.magic != kMagic) {
    throw Error(
        ErrorKind::kInternal,
        "the shared region a peer offered is of another release; all ranks must run the same");
  }
  const auto total = static_cast<std::uint64_t>(status.st_size);
  // What it says is only believed if the file is as large as that makes it.
  const std::size_t stagingBytes =
      header.stagingBytes == kCrossingStagingBytes ? kCrossingStagingBytes : kStagingBytes;
  const std::uint64_t expected = bytesWithoutArenas(size, stagingBytes);
  const auto ranks = static_cast<std::uint64_t>(size);
  if (header.size != ranks || total < expected || (total - expected) % ranks != 0 ||
      (total - expected) / ranks != header.arenaBytes) {
    throw Error(ErrorKind::kInternal,
                "the shared region a peer offered is for " + std::to_string(header.size) +
                    " ranks and has " + std::to_string(total) + " bytes; expected " +
                    std::to_string(ranks) + " ranks and " + std::to_string(expected) +
                    " bytes and the arenas; all ranks must run the same release");
  }
  std::size_t arenaBytes = header.arenaBytes;
  std::byte* base = map(descriptor, size, stagingBytes, arenaBytes);
  if (base == nullptr && arenaBytes != 0) {
    arenaBytes = 0;
    base = map(descriptor, size, stagingBytes, arenaBytes);
  }
  if (base == nullptr) throw mapError(size, stagingBytes);
  std::shared_ptr<Region> region(
      new Region(std::move(descriptor), size, stagingBytes, base, arenaBytes));
  registry().regions[status.st_ino] = region;
  return region;
}

Region::Region(FileDescriptor descriptor, int size, std::size_t stagingBytes, std::byte* base,
               std::size_t arenaBytes)
    : descriptor_(std::move(descriptor)),
      size_(size),
      stagingBytes_(stagingBytes),
      base_(base),
      arenaBytes_(arenaBytes) {}

Region::~Region() {
  // In a forked child the region is not mapped, and its private copy of the arenas stays.
  if (!descriptor_.isOwnedHere()) return;
  if (arenaBytes_ != 0) {
    const ForkGuard guard;
    const std::size_t before = bytesWithoutArenas(size_, stagingBytes_);
    unregisterPrivateCopies(base_ + before, totalBytes(size_, stagingBytes_, arenaBytes_) - before,
                            guard);
  }
  munmap(base_, totalBytes(size_, stagingBytes_, arenaBytes_));
}

bool Region::makePrivate(std::byte* data, std::size_t bytes) {
  const auto first = static_cast<std::size_t>(data - base_) / kPage * kPage;
  const std::size_t size = roundUp(static_cast<std::size_t>(data - base_) + bytes, kPage) - first;
  std::byte* address = base_ + first;
  const auto offset = static_cast<off_t>(first);
  {
    const ForkGuard guard;
    if (!exceptFromPrivateCopy(address, size, guard)) return false;
    // In one step: what threads of this process have written by then is there, what they write
    // later goes to pages of their own.
    if (mmap(address, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED,
             descriptor_.get(), offset) == MAP_FAILED) {
      registerPrivateCopy(address, size, descriptor_.get(), offset, guard);
      return false;
    }
  }
  if (!bringOwnPages(address, size)) return false;
  // Their shared twins are of no use to anybody; a peer that still writes there gets new ones.
  fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
            static_cast<off_t>(size));
  return true;
}

bool Region::returnPages(std::byte* data, std::size_t bytes) const {
  // The advice to remove is refused where the first private page is, and nothing after it is done.
  madvise(data, bytes, MADV_DONTNEED);
  return fallocate(descriptor_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                   static_cast<off_t>(data - base_), static_cast<off_t>(bytes)) == 0;
}

PeerMemory Region::view(int index) const {
  const Layout layout(static_cast<std::size_t>(size_), stagingBytes_);
  return PeerMemory(index, size_, &reinterpret_cast<Header*>(base_)->abort, base_ + layout.cells,
                    kCellsStride, base_ + layout.slots, base_ + layout.staging, stagingBytes_,
                    base_ + layout.arenas, arenaBytes_);
}

std::size_t Region::ringOffset(int from, int to) const {
  return Layout(static_cast<std::size_t>(size_), stagingBytes_).rings +
         (static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) +
          static_cast<std::size_t>(to)) *
             kRingStride;
}

RingControl& Region::ringControl(int from, int to) const {
  return *reinterpret_cast<RingControl*>(base_ + ringOffset(from, to));
}

std::byte* Region::ringData(int from, int to) const {
  return base_ + ringOffset(from, to) + roundUp(sizeof(RingControl), kPage);
}

}  // namespace smd::transport::shm
