#include "stream.h"

#include <unistd.h>

#include <cstdlib>
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

}  // namespace

std::shared_ptr<Stream> Stream::create() {
  const std::shared_ptr<Stream> stream(new Stream);
  std::thread([stream] { stream->run(); }).detach();
  const std::lock_guard<std::mutex> lock(all_mutex);
  all().push_back(stream);
  return stream;
}

void Stream::queue(std::function<void()> work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.push_back(std::move(work));
  ++queued_;
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

void Stream::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || !work_.empty(); });
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
