#include "stream.h"

#include <unistd.h>

#include <cstdlib>
#include <map>
#include <random>
#include <thread>

namespace doubles {
namespace {

std::mutex all_mutex;
std::vector<std::weak_ptr<Stream>>& all() {
  static auto& list = *new std::vector<std::weak_ptr<Stream>>;
  return list;
}

// Up to CUDA_DOUBLE_JITTER_US before each piece of work, so that streams overtake each other.
void jitter() {
  static const char* const setting = std::getenv("CUDA_DOUBLE_JITTER_US");
  static const unsigned most = setting ? unsigned(std::atoi(setting)) : 0;
  thread_local std::minstd_rand random{std::random_device{}()};
  if (most > 0) usleep(random() % most);
}

int setting(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

}  // namespace

// Pieces start in the order in which streams give them, each when its stream's last is done. So
// a piece that has to wait holds up other streams', one that runs does not.
class HardwareQueue {
 public:
  static std::shared_ptr<HardwareQueue> next(int priority) {
    static const auto most = size_t(setting("CUDA_DEVICE_MAX_CONNECTIONS", 8));
    static std::mutex mutex;
    struct Queues {
      size_t given = 0;
      std::vector<std::shared_ptr<HardwareQueue>> all;
    };
    static auto& of_priority = *new std::map<int, Queues>;
    const std::lock_guard<std::mutex> lock(mutex);
    Queues& queues = of_priority[setting("CUDA_DOUBLE_PRIORITIES_SHARE", 0) ? 0 : priority];
    if (queues.all.size() < most) queues.all.push_back(std::make_shared<HardwareQueue>());
    return queues.all[queues.given++ % most];
  }

  HardwareQueue() {
    std::thread([this] { run(); }).detach();
  }  // lives as long as the process

  void push(std::shared_ptr<Stream> stream, uint64_t number, std::function<void()> work,
            bool wait) {
    const std::lock_guard<std::mutex> lock(mutex_);
    pieces_.push_back({std::move(stream), number, std::move(work), wait});
    changed_.notify_all();
  }

 private:
  struct Piece {
    std::shared_ptr<Stream> stream;
    uint64_t number;
    std::function<void()> work;
    bool wait;
  };

  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !pieces_.empty(); });
      const Piece piece = std::move(pieces_.front());
      pieces_.pop_front();
      lock.unlock();
      piece.stream->wait_until_done(piece.number - 1);
      if (piece.wait) {
        piece.work();
        piece.stream->end_one();
      } else {
        piece.stream->start(piece.work);
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Piece> pieces_;
};

std::shared_ptr<Stream> Stream::create(int priority) {
  const std::shared_ptr<Stream> stream(new Stream);
  stream->hardware_ = HardwareQueue::next(priority);
  stream->self_ = stream;
  std::thread([stream] { stream->run(); }).detach();
  const std::lock_guard<std::mutex> lock(all_mutex);
  all().push_back(stream);
  return stream;
}

uint64_t Stream::queue(std::function<void()> work, bool is_wait) {
  const std::lock_guard<std::mutex> lock(mutex_);
  hardware_->push(self_.lock(), ++queued_, std::move(work), is_wait);
  return queued_;
}

void Stream::start(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.push_back(std::move(work));
  changed_.notify_all();
}

void Stream::end_one() {
  const std::lock_guard<std::mutex> lock(mutex_);
  ++done_;
  changed_.notify_all();
}

void Stream::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

uint64_t Stream::queued() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return queued_;
}

bool Stream::has_done(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ >= number;
}

void Stream::wait_until_done(uint64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= number; });
}

thread_local Stream* running = nullptr;

void Stream::spend(uint64_t ns) {
  if (running != nullptr) running->spent_ += ns;
}

void Stream::run() {
  running = this;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !work_.empty() || (closed_ && done_ == queued_); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    jitter();
    work();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

namespace {

std::vector<std::shared_ptr<Stream>> alive() {
  std::vector<std::shared_ptr<Stream>> streams;
  const std::lock_guard<std::mutex> lock(all_mutex);
  for (const auto& stream : all())
    if (auto one = stream.lock()) streams.push_back(one);
  return streams;
}

}  // namespace

void wait_for_all_streams() {
  for (const auto& stream : alive()) stream->wait_until_done(stream->queued());
}

bool all_streams_idle() {
  for (const auto& stream : alive())
    if (!stream->idle()) return false;
  return true;
}

}  // namespace doubles
