// Copyright 2026 The smdistributed-open authors
// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <new>
#include <string>

#include "common/error.h"

namespace smd::transport::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::uint64_t kMagic = 0x31304e4f49474552;  // "REGION01"

struct Header {
  std::uint64_t magic;
  std::uint64_t size;
  AbortBlock abort;
};
static_assert(sizeof(Header) <= kPage);

constexpr std::size_t roundUp(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}
constexpr std::size_t kCellsStride = roundUp(sizeof(RankCells), kPage);
constexpr std::size_t kRingStride = roundUp(sizeof(RingControl), kPage) + kRingBytes;

struct Layout {
  explicit Layout(std::size_t size)
      : cells(kPage),
        slots(cells + size * kCellsStride),
        staging(slots + size * 2 * kSlotBytes),
        rings(staging + size * kStagingBytes),
        total(rings + size * size * kRingStride) {}
  std::size_t cells, slots, staging, rings, total;
};

// Regions of this process by inode, so that ranks that are threads share one mapping.
struct Registry {
  std::mutex mutex;
  std::map<ino_t, std::weak_ptr<Region>> regions;
};
Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: regions may outlive static destructors
  return *instance;
}

ino_t inodeOf(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) != 0) throw systemError("fstat(region)");
  return status.st_ino;
}

}  // namespace

std::shared_ptr<Region> Region::create(int size) {
  const Layout layout(static_cast<std::size_t>(size));
  FileDescriptor descriptor = FileDescriptor::fromCall(
      [] { return memfd_create("smdistributed", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!descriptor.isOpen()) throw systemError("memfd_create");
  if (ftruncate(descriptor.get(), static_cast<off_t>(layout.total)) != 0) {
    throw systemError("ftruncate(region of " + std::to_string(layout.total) + " bytes)");
  }
  // Nobody may shrink it under a reader's feet (SIGBUS).
  fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
  const ino_t inode = inodeOf(descriptor.get());
  std::shared_ptr<Region> region(new Region(std::move(descriptor), size));
  auto* header = new (region->base_) Header{};
  header->size = static_cast<std::uint64_t>(size);
  for (int index = 0; index < size; ++index) {
    new (region->base_ + layout.cells + static_cast<std::size_t>(index) * kCellsStride) RankCells{};
  }
  header->magic = kMagic;  // rings: zero bytes are their initial state
  std::lock_guard lock(registry().mutex);
  registry().regions[inode] = region;
  return region;
}

std::shared_ptr<Region> Region::attach(FileDescriptor descriptor, int size) {
  std::lock_guard lock(registry().mutex);
  std::erase_if(registry().regions, [](const auto& entry) { return entry.second.expired(); });
  const ino_t inode = inodeOf(descriptor.get());
  if (auto known = registry().regions[inode].lock(); known != nullptr && known->size() == size) {
    return known;
  }
  struct stat status;
  const Layout layout(static_cast<std::size_t>(size));
  if (fstat(descriptor.get(), &status) != 0) throw systemError("fstat(region)");
  if (static_cast<std::size_t>(status.st_size) != layout.total) {
    throw Error(ErrorKind::kInternal, "the shared region a peer offered has " +
                                          std::to_string(status.st_size) + " bytes; expected " +
                                          std::to_string(layout.total) +
                                          "; all ranks must run the same release");
  }
  std::shared_ptr<Region> region(new Region(std::move(descriptor), size));
  if (reinterpret_cast<const Header*>(region->base_)->magic != kMagic) {
    throw Error(
        ErrorKind::kInternal,
        "the shared region a peer offered is of another release; all ranks must run the same");
  }
  registry().regions[inode] = region;
  return region;
}

Region::Region(FileDescriptor descriptor, int size)
    : descriptor_(std::move(descriptor)), size_(size) {
  const Layout layout(static_cast<std::size_t>(size));
  void* address =
      mmap(nullptr, layout.total, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_.get(), 0);
  if (address == MAP_FAILED) {
    throw systemError("mmap(region of " + std::to_string(layout.total) + " bytes)");
  }
  base_ = static_cast<std::byte*>(address);
  // A forked child (a DataLoader worker) must not be able to write where its parent communicates.
  madvise(address, layout.total, MADV_DONTFORK);
}

Region::~Region() {
  // In a forked child nothing is mapped there (MADV_DONTFORK), or by now something else is.
  if (descriptor_.isOwnedHere()) munmap(base_, Layout(static_cast<std::size_t>(size_)).total);
}

PeerMemory Region::view(int index) const {
  const Layout layout(static_cast<std::size_t>(size_));
  return PeerMemory(index, size_, &reinterpret_cast<Header*>(base_)->abort, base_ + layout.cells,
                    kCellsStride, base_ + layout.slots, base_ + layout.staging);
}

std::size_t Region::ringOffset(int from, int to) const {
  return Layout(static_cast<std::size_t>(size_)).rings +
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
