// Streams and events. Each stream is a thread that does what is queued, one after another; streams
// get their work through the few queues of the hardware.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace doubles {

class HardwareQueue;

class Stream {
 public:
  // Streams of one priority share CUDA_DEVICE_MAX_CONNECTIONS queues (8), those of all priorities
  // if CUDA_DOUBLE_PRIORITIES_SHARE=1.
  static std::shared_ptr<Stream> create(int priority);
  // These return its number.
  uint64_t queue(std::function<void()> work) { return queue(std::move(work), false); }
  // For work that only waits. Until it ends, nothing behind it in the hardware's queue begins.
  uint64_t queue_wait(std::function<void()> wait) { return queue(std::move(wait), true); }
  void close();  // the thread ends once it has done all

  uint64_t queued();  // in all
  bool has_done(uint64_t number);
  bool idle() { return has_done(queued()); }
  void wait_until_done(uint64_t number);

  int capturing = 0;  // as cuStreamIsCapturing says

  // The time that a GPU would take for the stream's work, in ns. Work spends it while it runs.
  static void spend(uint64_t ns);
  uint64_t spent() const { return spent_; }

 private:
  friend class HardwareQueue;
  Stream() = default;
  uint64_t queue(std::function<void()> work, bool is_wait);
  void start(std::function<void()> work);
  void run();
  void end_one();

  std::shared_ptr<HardwareQueue> hardware_;
  std::weak_ptr<Stream> self_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t queued_ = 0, done_ = 0;
  bool closed_ = false;
  std::atomic<uint64_t> spent_{0};
};

// A place in a stream; before it is recorded: nothing to wait for.
struct Event {
  std::mutex mutex;
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
  std::shared_ptr<std::atomic<uint64_t>> spent;  // the stream's, when it came here
};

// As freeing device memory does: waits until all streams are idle.
void wait_for_all_streams();
bool all_streams_idle();

}  // namespace doubles
