// The allocators of the simulated accelerator: of device memory, and of pinned memory of the host.

#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <memory>

namespace sim {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* host_allocator();

bool is_pinned(const void* address);
size_t pinned_bytes();

// Counts a copy that writes to this address as under way until what is returned is destroyed. Null: it is not pinned.
std::shared_ptr<void> begin_to_write(const void* address);

// Pins memory that something else has allocated. Raises where pinning is refused or the memory is pinned already.
void pin_memory_of_others(void* address, size_t size);

// Raises where the memory is not pinned, or the current device is broken. Nothing waits for copies to the memory.
void unpin_memory_of_others(void* address);

// How often memory was unpinned while a copy to it was queued. CUDA would not say so, and write to whatever lies there.
int torn_unpins();

// Forgets all blocks of device memory, and what is pinned. Tensors that still exist may be freed, and nothing else.
void forget_memory();

}  // namespace sim
