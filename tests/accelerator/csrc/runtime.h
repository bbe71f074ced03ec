// The driver of the simulated accelerator: devices, their memory, streams and events, without torch's tensors.
//
// A device's memory is a range of addresses that the process can neither read nor write. The bytes lie elsewhere, and
// only `host_address` leads to them, so a CPU kernel that is given a device's pointer ends with a segmentation fault.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace sim {

constexpr int kDevices = 2;
constexpr int kStreams = 129;  // of each device: the default one, and a pool that is handed out in turn
constexpr size_t kMemory = size_t{1} << 30;  // bytes of each device

// What a test can set while the devices are in use.
struct Knobs {
  std::atomic<int64_t> kernel_ms{0};  // how long after it begins to execute a kernel writes its result
  std::atomic<int64_t> copy_ms{0};    // how long a copy to memory of a device takes
  std::atomic<int64_t> fetch_ms{0};   // how long a copy from a device to memory of the host takes
  std::atomic<int64_t> largest_allocation{-1};  // bytes; allocations above it fail; -1 for no limit
  std::atomic<bool> refuses_pinning{false};
};
Knobs& knobs();

// --- whether there are devices --------------------------------------------------------------------------------------

// Makes the devices available. Nothing is allocated and no thread is started until they are used.
void plug_in();

// Waits for what is queued, ends all threads, forgets all memory, and sets the knobs back.
void unplug();

bool is_plugged_in();

// Whether any device was used since `plug_in`, and not only in a process of which this one is a fork.
bool is_initialized();

bool is_forked();

// Whether a call has used this device since `plug_in`. On CUDA such a call takes memory for a context.
bool has_context(int device);

// Makes every later call that needs this device raise AcceleratorError, as after an illegal access.
void break_device(int device, const char* fault);

// Whether `use` would not raise.
bool is_usable(int device);

// Raises where the device cannot be used; counts it as used otherwise.
void use(int device);

// --- the current device and stream of a thread ----------------------------------------------------------------------

int current_device();

// Uses the device if it is not the current one already, as cudaSetDevice does.
void set_current_device(int device);

// Makes a device the current one without using it.
void go_back_to_device(int device) noexcept;

int current_stream(int device);
void set_current_stream(int device, int stream);

// Returns the next stream of the pool; the first comes again after the last.
int next_stream(int device);

// --- memory ---------------------------------------------------------------------------------------------------------

bool is_device_address(const void* address);
int device_of(const void* address);

// Returns where the bytes behind a device's address lie.
void* host_address(const void* address);

// The first device address of a device's memory.
char* first_address(int device);

// --- streams and events ---------------------------------------------------------------------------------------------

// Queues work on a stream. The work runs in the stream's thread, after all that was queued before.
void enqueue(int device, int stream, std::function<void()> work);

void synchronize_stream(int device, int stream);
void synchronize_device(int device);
bool is_idle(int device, int stream);

// One recording of an event. An event that is recorded again gets a new one.
class Recording;
using RecordingPtr = std::shared_ptr<Recording>;

RecordingPtr record(int device, int stream);

// Makes later work of a stream wait for the recording.
void wait_in_stream(int device, int stream, RecordingPtr recording);

bool has_happened(const RecordingPtr& recording);
void synchronize(const RecordingPtr& recording);
double milliseconds_between(const RecordingPtr& first, const RecordingPtr& last);

void sleep_milliseconds(int64_t milliseconds);

}  // namespace sim
