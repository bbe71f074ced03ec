// As NCCL does, a group has a stream of its own on each device. A call waits there for what the caller has queued,
// returns at once, and only what waits for its work comes after it. Results are as late as a kernel's.

#include "collectives.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "memory.h"
#include "operators.h"
#include "runtime.h"

namespace sim {

namespace {

using c10d::Backend;
using c10d::OpType;
using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<Work>;

c10::Stream stream_at(int device, int number) {
  const c10::Device where(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device));
  return c10::Stream(c10::Stream::UNSAFE, where, number);
}

// Returns CPU tensors over the bytes. They hold nothing: the streams that use the memory are recorded with it.
Tensors bytes_of_all(const Tensors& tensors) {
  Tensors bytes;
  for (const auto& tensor : tensors) {
    bytes.push_back(bytes_of(tensor));
  }
  return bytes;
}

std::vector<Tensors> bytes_of_lists(const std::vector<Tensors>& lists) {
  std::vector<Tensors> bytes;
  for (const auto& list : lists) {
    bytes.push_back(bytes_of_all(list));
  }
  return bytes;
}

Tensors joined(const std::vector<Tensors>& lists) {
  Tensors all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

// One collective that is queued on a group's stream.
class SimWork final : public Work {
 public:
  SimWork(int rank, OpType type, int device, int stream, Tensors results)
      : Work(rank, type),
        device_(device),
        end_(record(device, stream)),
        results_(std::move(results)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{stream_at(device, stream).device()})) {
    const c10::StreamGuard guard(stream_at(device, stream));
    future_->markCompleted(c10::IValue(results_));  // with an event, which the waiting stream waits for
  }

  bool isCompleted() override {
    return has_happened(end_);
  }

  bool isSuccess() const override {
    return is_usable(device_);
  }

  // The caller's current stream waits, and the caller itself only for a barrier.
  bool wait(std::chrono::milliseconds /*timeout*/) override {
    synchronize();
    return true;
  }

  void synchronize() override {
    if (opType_ == OpType::BARRIER) {
      sim::synchronize(end_);
    } else {
      wait_in_stream(device_, current_stream(device_), end_);
    }
  }

  Tensors result() override {
    return results_;
  }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    return future_;
  }

 private:
  const int device_;
  const RecordingPtr end_;
  const Tensors results_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class SimCollectives final : public Backend {
 public:
  explicit SimCollectives(c10::intrusive_ptr<Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}

  const std::string getBackendName() const override {
    return "simulated";
  }

  // What is queued is dropped, and what is under way is not waited for, whatever the other ranks do. As with NCCL their
  // results are anything then, no error tells of it, and only the next call raises.
  void abort() override {
    *aborted_ = true;
  }

  void setSequenceNumberForGroup() override {}

  // How many collectives have begun: a queued one begins once its stream comes to it.
  uint64_t getSequenceNumberForGroup() override {
    return *begun_;
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return queue(OpType::BROADCAST, tensors, tensors, [options](Backend& host, Tensors& bytes, Tensors&) {
      return host.broadcast(bytes, options);
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return queue_reduction(OpType::ALLREDUCE, tensors, tensors, options, [](auto& host, auto& bytes, auto&, auto& how) {
      return host.allreduce(bytes, how);
    });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return queue_reduction(
        OpType::ALLREDUCE_COALESCED, tensors, tensors, options,
        [](auto& host, auto& bytes, auto&, auto& how) { return host.allreduce_coalesced(bytes, how); });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    return queue_reduction(OpType::REDUCE, tensors, tensors, options, [](auto& host, auto& bytes, auto&, auto& how) {
      return host.reduce(bytes, how);
    });
  }

  WorkPtr allgather(std::vector<Tensors>& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return queue(
        OpType::ALLGATHER, joined(to), from,
        [lists = bytes_of_lists(to), options](Backend& host, Tensors&, Tensors& bytes) mutable {
          return host.allgather(lists, bytes, options);
        });
  }

  WorkPtr _allgather_base(at::Tensor& to, at::Tensor& from, const c10d::AllgatherOptions& options) override {
    return queue(OpType::_ALLGATHER_BASE, {to}, {from}, [options](Backend& host, Tensors& all, Tensors& mine) {
      return host._allgather_base(all[0], mine[0], options);
    });
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& to, Tensors& from, const c10d::AllgatherOptions& options) override {
    return queue(OpType::COALESCED, to, from, [options](Backend& host, Tensors& all, Tensors& mine) {
      return host.allgather_into_tensor_coalesced(all, mine, options);
    });
  }

  WorkPtr gather(std::vector<Tensors>& to, Tensors& from, const c10d::GatherOptions& options) override {
    return queue(
        OpType::GATHER, joined(to), from,
        [lists = bytes_of_lists(to), options](Backend& host, Tensors&, Tensors& bytes) mutable {
          return host.gather(lists, bytes, options);
        });
  }

  WorkPtr scatter(Tensors& to, std::vector<Tensors>& from, const c10d::ScatterOptions& options) override {
    return queue(
        OpType::SCATTER, to, joined(from),
        [lists = bytes_of_lists(from), options](Backend& host, Tensors& bytes, Tensors&) mutable {
          return host.scatter(bytes, lists, options);
        });
  }

  WorkPtr reduce_scatter(
      Tensors& to, std::vector<Tensors>& from, const c10d::ReduceScatterOptions& options) override {
    TORCH_CHECK(to.size() == 1 && from.size() == 1, "a rank scatters the tensors of one device");
    return queue_reduce_scatter(OpType::REDUCE_SCATTER, to, from[0], options);
  }

  WorkPtr _reduce_scatter_base(
      at::Tensor& to, at::Tensor& from, const c10d::ReduceScatterOptions& options) override {
    return queue_reduce_scatter(OpType::_REDUCE_SCATTER_BASE, {to}, {from}, options);
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& to, Tensors& from, const c10d::ReduceScatterOptions& options) override {
    return queue_reduce_scatter(OpType::REDUCE_SCATTER_TENSOR_COALESCED, to, from, options);
  }

  WorkPtr alltoall_base(
      at::Tensor& to, at::Tensor& from, std::vector<int64_t>& to_sizes, std::vector<int64_t>& from_sizes,
      const c10d::AllToAllOptions& options) override {
    return queue(
        OpType::ALLTOALL_BASE, {to}, {from},
        [to_sizes, from_sizes, options](Backend& host, Tensors& found, Tensors& given) mutable {
          return host.alltoall_base(found[0], given[0], to_sizes, from_sizes, options);
        });
  }

  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return queue(OpType::SEND, {}, tensors, [to, tag](Backend& host, Tensors&, Tensors& bytes) {
      return host.send(bytes, to, tag);
    });
  }

  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return queue(OpType::RECV, tensors, {}, [from, tag](Backend& host, Tensors& bytes, Tensors&) {
      return host.recv(bytes, from, tag);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return launch(OpType::BARRIER, current_device(), {}, [options](Backend& host) { return host.barrier(options); });
  }

 private:
  // Queues a collective of tensors of one device. `call` gets CPU tensors over the bytes of both.
  template <typename Call>
  WorkPtr queue(OpType type, const Tensors& to, const Tensors& from, Call call) {
    Tensors all = to;
    all.insert(all.end(), from.begin(), from.end());
    TORCH_CHECK(!all.empty(), "a collective needs a tensor");
    const int device = all[0].device().index();
    for (const auto& tensor : all) {
      TORCH_CHECK(
          tensor.is_privateuseone() && tensor.device().index() == device,
          "a collective of the simulated accelerator takes tensors of one of its devices");
      TORCH_CHECK(tensor.is_contiguous(), "a collective of the simulated accelerator takes contiguous tensors");
      device_allocator()->recordStream(tensor.storage().data_ptr(), stream_at(device, stream_on(device)));
    }
    return launch(
        type, device, to,
        [call = std::move(call), to_bytes = bytes_of_all(to), from_bytes = bytes_of_all(from)](Backend& host) mutable {
          return call(host, to_bytes, from_bytes);
        });
  }

  // The host's backend knows no average: it adds, and the sum is divided.
  template <typename Options, typename Call>
  WorkPtr queue_reduction(OpType type, const Tensors& to, const Tensors& from, Options options, Call call) {
    const bool averages = options.reduceOp == c10d::ReduceOp::AVG;
    if (averages) {
      options.reduceOp = c10d::ReduceOp::SUM;
    }
    return queue(
        type, to, from,
        [size = getSize(), aborted = aborted_, averages, options, call = std::move(call)](
            Backend& host, Tensors& found, Tensors& given) mutable -> WorkPtr {
          if (!wait_on_host(call(host, found, given, options), *aborted) || !averages) {
            return nullptr;
          }
          const at::AutoDispatchBelowADInplaceOrView no_autograd;
          for (auto& tensor : found) {
            tensor.div_(size);
          }
          return nullptr;
        });
  }

  // The host's backend reduces everything and takes its part in `Work::wait`, which cannot be given up. So it is done
  // here. `from` holds as many tensors as `to`, or one for each rank.
  WorkPtr queue_reduce_scatter(
      OpType type, const Tensors& to, const Tensors& from, const c10d::ReduceScatterOptions& options) {
    c10d::AllreduceOptions each;
    each.reduceOp = options.reduceOp;
    return queue_reduction(
        type, to, from, each,
        [rank = getRank(), size = getSize(), aborted = aborted_](
            Backend& host, Tensors& found, Tensors& given, c10d::AllreduceOptions& how) -> WorkPtr {
          const at::AutoDispatchBelowADInplaceOrView no_autograd;
          for (size_t number = 0; number < found.size(); number++) {
            Tensors sum{
                given.size() == found.size() ? given[number].clone().view({size, -1})
                                             : at::stack(given).view({size, -1})};
            if (!wait_on_host(host.allreduce(sum, how), *aborted)) {
              return nullptr;
            }
            found[number].copy_(sum[0][rank].view(found[number].sizes()));
          }
          return nullptr;
        });
  }

  template <typename Call>
  WorkPtr launch(OpType type, int device, Tensors results, Call call) {
    TORCH_CHECK(!*aborted_, "the group of the simulated accelerator was aborted");
    const int stream = stream_on(device);
    wait_in_stream(device, stream, record(device, current_stream(device)));
    enqueue(device, stream, [host = host_, aborted = aborted_, begun = begun_, call = std::move(call)]() mutable {
      sleep_milliseconds(knobs().kernel_ms);
      if (*aborted) {
        return;
      }
      ++*begun;
      wait_on_host(call(*host), *aborted);
    });
    return c10::make_intrusive<SimWork>(getRank(), type, device, stream, std::move(results));
  }

  // Returns whether the work, if any, is done; false where it was given up. Raises what the work has failed of. Gloo's
  // sends and receives do not say when they are done, and are not given up.
  static bool wait_on_host(const WorkPtr& work, const std::atomic<bool>& aborted) {
    while (work != nullptr && !c10d::isP2POp(work->retrieveOpType()) && !work->isCompleted()) {
      if (aborted) {
        return false;
      }
      sleep_milliseconds(1);
    }
    if (work != nullptr && !aborted) {
      work->wait();
    }
    return !aborted;
  }

  int stream_on(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = streams_.find(device);
    return found != streams_.end() ? found->second : streams_.emplace(device, next_stream(device)).first->second;
  }

  const c10::intrusive_ptr<Backend> host_;
  const std::shared_ptr<std::atomic<bool>> aborted_ = std::make_shared<std::atomic<bool>>(false);
  const std::shared_ptr<std::atomic<uint64_t>> begun_ = std::make_shared<std::atomic<uint64_t>>(0);
  std::mutex mutex_;
  std::map<int, int> streams_;  // device -> the group's stream of it
};

}  // namespace

c10::intrusive_ptr<Backend> make_collectives(const c10::intrusive_ptr<Backend>& host) {
  return c10::make_intrusive<SimCollectives>(host);
}

}  // namespace sim
