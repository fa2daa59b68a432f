// Streams and events: each stream is a thread that does what is queued, one after another.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace doubles {

class Stream {
 public:
  static std::shared_ptr<Stream> create();
  void queue(std::function<void()> work);
  void close();  // the thread ends once it has done all

  uint64_t queued();  // in all
  bool has_done(uint64_t number);
  bool idle() { return has_done(queued()); }
  void wait_until_done(uint64_t number);

  int capturing = 0;  // as cuStreamIsCapturing says

 private:
  Stream() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  uint64_t queued_ = 0, done_ = 0;
  bool closed_ = false;
};

// A place in a stream; before it is recorded: nothing to wait for.
struct Event {
  std::mutex mutex;
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
};

// As freeing device memory does: waits until all streams are idle.
void wait_for_all_streams();
bool all_streams_idle();

}  // namespace doubles
