#include "runtime.h"

#include <Python.h>
#include <c10/util/Exception.h>
#include <pthread.h>
#include <sys/mman.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace sim {

class Recording {
 public:
  std::mutex mutex;
  std::condition_variable changed;
  bool happened = false;
  int device = 0;
  std::chrono::steady_clock::time_point when;
};

namespace {

// Lets other threads of Python run while this one waits: what it waits for may drop a tensor that Python knows.
class WithoutGil {
 public:
  WithoutGil() : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (state_ != nullptr) {
      PyEval_RestoreThread(state_);
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

class Queue {
 public:
  explicit Queue(int device) : device_(device) {}

  void put(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!thread_.joinable()) {
      ends_ = false;
      thread_ = std::thread([this] { run(); });
    }
    queued_.push_back(std::move(work));
    unfinished_++;
    changed_.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return unfinished_ == 0; });
  }

  bool is_idle() {
    std::lock_guard<std::mutex> lock(mutex_);
    return unfinished_ == 0;
  }

  void end() {
    wait();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    if (thread_.joinable()) {
      thread_.join();
    }
    thread_ = std::thread();
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !queued_.empty(); });
      if (queued_.empty()) {
        return;
      }
      std::function<void()> work = std::move(queued_.front());
      queued_.pop_front();
      lock.unlock();
      try {
        work();
      } catch (const std::exception& error) {
        break_device(device_, error.what());
      }
      work = nullptr;  // what it holds is dropped before it counts as finished
      lock.lock();
      unfinished_--;
      changed_.notify_all();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queued_;
  size_t unfinished_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

struct Device {
  explicit Device(int number) {
    for (auto& queue : queues) {
      queue = std::make_unique<Queue>(number);
    }
  }

  std::unique_ptr<Queue> queues[kStreams];
  std::atomic<bool> used{false};
  std::atomic<bool> broken{false};
  std::mutex mutex;
  std::string fault;
  std::atomic<unsigned> handed_out{0};
  char* addresses = nullptr;
  char* bytes = nullptr;
};

// Never destroyed: threads may still run while the process ends.
struct Driver {
  Driver() {
    for (int number = 0; number < kDevices; number++) {
      devices[number] = new Device(number);
      devices[number]->addresses = reserve(PROT_NONE);
      devices[number]->bytes = reserve(PROT_READ | PROT_WRITE);
    }
    pthread_atfork(nullptr, nullptr, [] { driver().forked = true; });
  }

  static Driver& driver() {
    static Driver* one = new Driver();
    return *one;
  }

  static char* reserve(int protection) {
    void* at = mmap(nullptr, kMemory, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(at != MAP_FAILED, "cannot reserve memory for the simulated accelerator");
    return static_cast<char*>(at);
  }

  Knobs knobs;
  Device* devices[kDevices];
  std::atomic<bool> plugged_in{false};
  std::atomic<bool> forked{false};
};

Driver& driver() {
  return Driver::driver();
}

Device& device_at(int device) {
  TORCH_CHECK(device >= 0 && device < kDevices, "there is no device ", device, " of the simulated accelerator");
  return *driver().devices[device];
}

Queue& queue_at(int device, int stream) {
  TORCH_CHECK(stream >= 0 && stream < kStreams, "there is no stream ", stream, " of the simulated accelerator");
  return *device_at(device).queues[stream];
}

thread_local int this_device = 0;
thread_local int this_stream[kDevices] = {};

}  // namespace

Knobs& knobs() {
  return driver().knobs;
}

void plug_in() {
  driver().plugged_in = true;
}

void unplug() {
  if (!is_forked()) {
    WithoutGil without;
    for (int number = 0; number < kDevices; number++) {
      for (auto& queue : device_at(number).queues) {
        queue->end();
      }
      device_at(number).used = false;
      device_at(number).broken = false;
      madvise(device_at(number).bytes, kMemory, MADV_DONTNEED);
    }
  }
  knobs().copy_ms = 0;
  knobs().fetch_ms = 0;
  knobs().kernel_ms = 0;
  knobs().largest_allocation = -1;
  knobs().refuses_pinning = false;
  this_device = 0;
  for (int& stream : this_stream) {
    stream = 0;
  }
  driver().plugged_in = false;
}

bool is_plugged_in() {
  return driver().plugged_in;
}

bool is_forked() {
  return driver().forked;
}

bool is_initialized() {
  return is_plugged_in() && !is_forked() && (has_context(0) || has_context(1));
}

bool has_context(int device) {
  return device_at(device).used;
}

void break_device(int device, const char* fault) {
  Device& one = device_at(device);
  std::lock_guard<std::mutex> lock(one.mutex);
  if (!one.broken) {
    one.fault = fault;
    one.broken = true;
  }
}

bool is_usable(int device) {
  return is_plugged_in() && !is_forked() && !device_at(device).broken;
}

void use(int device) {
  Device& one = device_at(device);
  TORCH_CHECK(is_plugged_in(), "there is no simulated accelerator: it is not plugged in");
  TORCH_CHECK(!is_forked(), "cannot use the simulated accelerator in a process that was forked from one that used it");
  if (one.broken) {
    std::lock_guard<std::mutex> lock(one.mutex);
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 700, "the simulated device is broken: " + one.fault);
  }
  one.used = true;
}

int current_device() {
  return this_device;
}

void set_current_device(int device) {
  device_at(device);
  if (device != this_device) {
    if (is_plugged_in()) {  // what a process drops as it ends may set the device, and must not raise
      use(device);
    }
    this_device = device;
  }
}

void go_back_to_device(int device) noexcept {
  this_device = device;
}

int current_stream(int device) {
  device_at(device);
  return this_stream[device];
}

void set_current_stream(int device, int stream) {
  queue_at(device, stream);
  this_stream[device] = stream;
}

int next_stream(int device) {
  use(device);
  return 1 + static_cast<int>(device_at(device).handed_out++ % (kStreams - 1));
}

bool is_device_address(const void* address) {
  for (const Device* device : driver().devices) {
    const char* at = static_cast<const char*>(address);
    if (at >= device->addresses && at < device->addresses + kMemory) {
      return true;
    }
  }
  return false;
}

int device_of(const void* address) {
  const char* at = static_cast<const char*>(address);
  for (int number = 0; number < kDevices; number++) {
    if (at >= first_address(number) && at < first_address(number) + kMemory) {
      return number;
    }
  }
  TORCH_CHECK(false, "this is no address of a simulated device");
}

void* host_address(const void* address) {
  const Device& device = device_at(device_of(address));
  return device.bytes + (static_cast<const char*>(address) - device.addresses);
}

char* first_address(int device) {
  return device_at(device).addresses;
}

void enqueue(int device, int stream, std::function<void()> work) {
  use(device);
  queue_at(device, stream).put(std::move(work));
}

void synchronize_stream(int device, int stream) {
  use(device);
  {
    WithoutGil without;
    queue_at(device, stream).wait();
  }
  use(device);  // raises what has happened meanwhile
}

void synchronize_device(int device) {
  use(device);
  {
    WithoutGil without;
    for (auto& queue : device_at(device).queues) {
      queue->wait();
    }
  }
  use(device);
}

bool is_idle(int device, int stream) {
  use(device);
  return queue_at(device, stream).is_idle();
}

RecordingPtr record(int device, int stream) {
  auto recording = std::make_shared<Recording>();
  recording->device = device;
  enqueue(device, stream, [recording] {
    std::lock_guard<std::mutex> lock(recording->mutex);
    recording->when = std::chrono::steady_clock::now();
    recording->happened = true;
    recording->changed.notify_all();
  });
  return recording;
}

void wait_in_stream(int device, int stream, RecordingPtr recording) {
  enqueue(device, stream, [recording] {
    std::unique_lock<std::mutex> lock(recording->mutex);
    recording->changed.wait(lock, [&] { return recording->happened; });
  });
}

bool has_happened(const RecordingPtr& recording) {
  use(recording->device);
  std::lock_guard<std::mutex> lock(recording->mutex);
  return recording->happened;
}

void synchronize(const RecordingPtr& recording) {
  use(recording->device);
  {
    WithoutGil without;
    std::unique_lock<std::mutex> lock(recording->mutex);
    recording->changed.wait(lock, [&] { return recording->happened; });
  }
  use(recording->device);
}

double milliseconds_between(const RecordingPtr& first, const RecordingPtr& last) {
  TORCH_CHECK(has_happened(first) && has_happened(last), "cannot measure: an event has not happened yet");
  return std::chrono::duration<double, std::milli>(last->when - first->when).count();
}

void sleep_milliseconds(int64_t milliseconds) {
  if (milliseconds > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  }
}

}  // namespace sim
