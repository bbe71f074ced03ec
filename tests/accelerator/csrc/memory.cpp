#include "memory.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "runtime.h"

namespace sim {

namespace {

constexpr size_t kUnit = 512;  // sizes of blocks are multiples of it, in bytes

struct Block {
  int device = 0;
  int stream = 0;  // the stream that was current when the block was allocated
  size_t offset = 0;
  size_t size = 0;
  uint64_t era = 0;
  std::set<int> users;  // other streams that use the block: see recordStream
};

// Caches freed blocks, each for the stream that it was allocated on, as CUDA's allocator does. Such a block is handed out
// again at once, even while work that uses it is queued on that stream: the next user comes behind in the same queue.
class Cache {
 public:
  explicit Cache(int device) : device_(device) {
    clear();
  }

  void clear() {
    free_ = {{0, kMemory}};
    cached_.clear();
    pending_.clear();
    stats_ = {};
  }

  // Returns null where there is no memory.
  Block* allocate(size_t bytes, int stream, uint64_t era) {
    const size_t size = (bytes + kUnit - 1) / kUnit * kUnit;
    const int64_t largest = knobs().largest_allocation;
    collect_pending();
    Block* block = largest >= 0 && bytes > static_cast<size_t>(largest) ? nullptr : take(size, stream);
    if (block != nullptr) {
      block->era = era;
      change(stats_.allocated_bytes, size, true);
      change(stats_.active_bytes, size, true);
      change(stats_.requested_bytes, size, true);
    }
    return block;
  }

  void give_back(Block* block) {
    change(stats_.allocated_bytes, block->size, false);
    change(stats_.active_bytes, block->size, false);
    change(stats_.requested_bytes, block->size, false);
    std::vector<RecordingPtr> events;
    for (const int stream : block->users) {
      if (is_usable(device_)) {  // a tensor may outlive what its device does
        events.push_back(record(device_, stream));
      }
    }
    block->users.clear();
    if (events.empty()) {
      cached_.emplace(std::make_pair(block->stream, block->size), block);
    } else {
      pending_.emplace_back(block, std::move(events));
    }
  }

  // Gives cached blocks back to the driver. Work that may use them must have ended.
  void release_cached() {
    collect_pending();
    for (auto& [key, block] : cached_) {
      change(stats_.reserved_bytes, block->size, false);
      release(block->offset, block->size);
      delete block;
    }
    cached_.clear();
  }

  size_t free_bytes() const {
    size_t sum = 0;
    for (const auto& [offset, size] : free_) {
      sum += size;
    }
    return sum;
  }

  c10::CachingDeviceAllocator::DeviceStats& stats() {
    return stats_;
  }

 private:
  static void change(c10::CachingDeviceAllocator::StatArray& stat, size_t bytes, bool more) {
    auto& all = stat[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    if (more) {
      all.increase(bytes);
    } else {
      all.decrease(bytes);
    }
  }

  Block* take(size_t size, int stream) {
    if (auto found = cached_.find({stream, size}); found != cached_.end()) {
      Block* block = found->second;
      cached_.erase(found);
      return block;
    }
    for (auto segment = free_.begin(); segment != free_.end(); ++segment) {
      const auto [offset, room] = *segment;
      if (room >= size) {
        free_.erase(segment);
        if (room > size) {
          free_[offset + size] = room - size;
        }
        change(stats_.reserved_bytes, size, true);
        return new Block{device_, stream, offset, size, 0, {}};
      }
    }
    return nullptr;
  }

  void release(size_t offset, size_t size) {
    auto next = free_.upper_bound(offset);
    if (next != free_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        free_.erase(before);
      }
    }
    if (next != free_.end() && offset + size == next->first) {
      size += next->second;
      free_.erase(next);
    }
    free_[offset] = size;
  }

  void collect_pending() {
    std::vector<std::pair<Block*, std::vector<RecordingPtr>>> left;
    for (auto& [block, events] : pending_) {
      bool happened = true;
      for (const auto& event : events) {
        happened = happened && (!is_usable(device_) || has_happened(event));
      }
      if (happened) {
        cached_.emplace(std::make_pair(block->stream, block->size), block);
      } else {
        left.emplace_back(block, std::move(events));
      }
    }
    pending_ = std::move(left);
  }

  const int device_;
  std::map<size_t, size_t> free_;  // offset -> size of what the driver has free
  std::multimap<std::pair<int, size_t>, Block*> cached_;  // (stream, size) -> block
  std::vector<std::pair<Block*, std::vector<RecordingPtr>>> pending_;
  c10::CachingDeviceAllocator::DeviceStats stats_;
};

void give_back(void* context);

class SimAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) {
      return {nullptr, where};
    }
    use(device);
    const int stream = current_stream(device);
    std::unique_lock<std::mutex> lock(mutex_);
    Block* block = caches_[device].allocate(bytes, stream, era_);
    if (block == nullptr) {
      lock.unlock();  // another thread of Python may free a tensor meanwhile
      synchronize_device(device);
      lock.lock();
      caches_[device].stats().num_alloc_retries++;
      caches_[device].release_cached();
      block = caches_[device].allocate(bytes, stream, era_);
    }
    if (block == nullptr) {
      caches_[device].stats().num_ooms++;
      C10_THROW_ERROR(OutOfMemoryError, "the simulated device is out of memory");
    }
    return {first_address(device) + block->offset, block, &sim::give_back, where};
  }

  void free(Block* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (block->era == era_) {
      caches_[block->device].give_back(block);
    } else {
      delete block;
    }
  }

  void forget() {
    std::lock_guard<std::mutex> lock(mutex_);
    era_++;
    for (auto& cache : caches_) {
      cache.clear();
    }
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    synchronize_device(device_of(from));
    synchronize_device(device_of(to));
    default_copy_data(host_address(to), host_address(from), bytes);
  }

  bool initialized() override {
    return is_initialized();
  }

  void emptyCache(c10::MempoolId_t /*pool*/) override {
    for (int device = 0; device < kDevices; device++) {
      if (has_context(device)) {
        synchronize_device(device);
        std::lock_guard<std::mutex> lock(mutex_);
        caches_[device].release_cached();
      }
    }
  }

  void recordStream(const c10::DataPtr& pointer, c10::Stream stream) override {
    auto* block = static_cast<Block*>(pointer.get_context());
    std::lock_guard<std::mutex> lock(mutex_);
    if (block != nullptr && block->stream != static_cast<int>(stream.id())) {
      block->users.insert(static_cast<int>(stream.id()));
    }
  }

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return caches_.at(device).stats();
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = caches_.at(device).stats();
    for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      for (auto& one : *stat) {
        one.reset_accumulated();
      }
    }
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = caches_.at(device).stats();
    for (auto* stat : {&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes}) {
      for (auto& one : *stat) {
        one.reset_peak();
      }
    }
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return {caches_.at(device).free_bytes(), kMemory};
  }

 private:
  std::mutex mutex_;
  std::array<Cache, kDevices> caches_{Cache(0), Cache(1)};
  uint64_t era_ = 0;  // a number for the time between two calls of `forget`
};

SimAllocator& allocator() {
  static auto* one = new SimAllocator();
  return *one;
}

void give_back(void* context) {
  if (context != nullptr) {
    allocator().free(static_cast<Block*>(context));
  }
}

struct PinnedRange {
  size_t size = 0;
  std::shared_ptr<std::atomic<int>> writers;  // how many queued copies write to it
};

struct PinnedRanges {
  std::mutex mutex;
  std::map<const char*, PinnedRange> by_address;
  int torn_unpins = 0;  // how often memory was unpinned to which a copy was queued

  // Returns null where the address is not pinned. The mutex is held.
  PinnedRange* find(const void* address) {
    const char* at = static_cast<const char*>(address);
    auto next = by_address.upper_bound(at);
    if (next == by_address.begin()) {
      return nullptr;
    }
    auto& [begin, range] = *std::prev(next);
    return at < begin + range.size ? &range : nullptr;
  }
};

PinnedRanges& pinned() {
  static auto* ranges = new PinnedRanges();
  return *ranges;
}

void free_pinned(void* address) {
  if (address != nullptr) {
    {
      auto& ranges = pinned();
      std::lock_guard<std::mutex> lock(ranges.mutex);
      ranges.by_address.erase(static_cast<const char*>(address));  // unless the devices were unplugged meanwhile
    }
    std::free(address);
  }
}

// Queued copies hold the storage that they use, so a freed block is not in use any more.
class SimHostAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, c10::DeviceType::CPU};
    }
    void* address = nullptr;
    TORCH_CHECK(posix_memalign(&address, 4096, bytes) == 0, "there is no memory");
    try {
      pin_memory_of_others(address, bytes);
    } catch (...) {
      std::free(address);
      throw;
    }
    return {address, address, &free_pinned, c10::DeviceType::CPU};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool record_event(void* /*address*/, void* /*context*/, c10::Stream /*stream*/) override {
    return true;
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  return &allocator();
}

at::HostAllocator* host_allocator() {
  static auto* one = new SimHostAllocator();
  return one;
}

bool is_pinned(const void* address) {
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  return ranges.find(address) != nullptr;
}

size_t pinned_bytes() {
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  size_t sum = 0;
  for (const auto& [address, range] : ranges.by_address) {
    sum += range.size;
  }
  return sum;
}

int torn_unpins() {
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  return ranges.torn_unpins;
}

std::shared_ptr<void> begin_to_write(const void* address) {
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  PinnedRange* range = ranges.find(address);
  if (range == nullptr) {
    return nullptr;
  }
  auto writers = range->writers;
  ++*writers;
  return {static_cast<void*>(nullptr), [writers](void*) { --*writers; }};
}

void pin_memory_of_others(void* address, size_t size) {
  TORCH_CHECK(!knobs().refuses_pinning, "the simulated accelerator refuses to pin memory");
  use(current_device());
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  TORCH_CHECK(ranges.find(address) == nullptr, "the memory is pinned already");
  ranges.by_address[static_cast<const char*>(address)] = {size, std::make_shared<std::atomic<int>>(0)};
}

void unpin_memory_of_others(void* address) {
  use(current_device());
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  const auto found = ranges.by_address.find(static_cast<const char*>(address));
  TORCH_CHECK(found != ranges.by_address.end(), "the memory is not pinned");
  if (*found->second.writers != 0) {
    ranges.torn_unpins++;
  }
  ranges.by_address.erase(found);
}

void forget_memory() {
  allocator().forget();
  auto& ranges = pinned();
  std::lock_guard<std::mutex> lock(ranges.mutex);
  ranges.by_address.clear();
  ranges.torn_unpins = 0;
}

}  // namespace sim
