#include "intercept/gloo/exchange.h"

#include <climits>
#include <cstdint>
#include <cstring>
#include <numeric>

#include "base/error.h"

namespace omnihvd {
namespace {

// The header before a rank's bytes. If it arrives as it was sent, all ranks are in the same
// context.
struct Announcement {
  char name[8] = {'o', 'm', 'n', 'i', 'h', 'v', 'd', '1'};
  uint32_t rank = 0, bytes = 0;
};

}  // namespace

GlooExchange::GlooExchange(const HorovodLibrary& library, GlooContext* context)
    : Exchange(context->of_process_set->rank, context->of_process_set->size),
      library_(library),
      context_(context) {}

std::vector<std::string> GlooExchange::allgather(const std::string& mine) {
  if (mine.size() >= INT_MAX / static_cast<size_t>(size_))
    throw Error("too much to tell the other ranks: " + std::to_string(mine.size()) + " bytes");
  Announcement announcement;
  announcement.rank = static_cast<uint32_t>(rank_);
  announcement.bytes = static_cast<uint32_t>(mine.size()) + 1;  // Gloo cannot send an empty message
  std::string words(reinterpret_cast<const char*>(&announcement), sizeof announcement);
  const std::string announced =
      gather(words, std::vector<int>(size_, static_cast<int>(words.size())));
  std::vector<int> lengths;
  for (int r = 0; r < size_; ++r) {
    std::memcpy(&announcement, &announced[r * sizeof announcement], sizeof announcement);
    const int64_t bytes = announcement.bytes;
    if (std::memcmp(announcement.name, Announcement().name, sizeof announcement.name) != 0 ||
        announcement.rank != static_cast<uint32_t>(r) || bytes < 1 || bytes > INT_MAX / size_)
      throw Error("rank " + std::to_string(r) +
                  " says something else over Gloo: install the same omnihvd on all hosts, and "
                  "import it on every rank before hvd.init()");
    lengths.push_back(static_cast<int>(bytes));
  }
  const std::string all = gather(mine + '.', lengths);
  std::vector<std::string> parts;
  for (size_t r = 0, at = 0; r < lengths.size(); at += lengths[r++])
    parts.push_back(all.substr(at, lengths[r] - 1));
  return parts;
}

// Gloo passes messages from each rank to the next, so nothing comes through a missing rank. No
// message is all zeros.
std::string GlooExchange::first_missing(const std::string& all,
                                        const std::vector<int>& lengths) const {
  for (int before = 1; before < size_; ++before) {
    const int rank = (rank_ - before + size_) % size_;
    const auto at = std::accumulate(lengths.begin(), lengths.begin() + rank, size_t{0});
    if (all.find_first_not_of('\0', at) >= at + size_t(lengths[size_t(rank)]))
      return "rank " + std::to_string(rank);
  }
  return "another rank";
}

std::string GlooExchange::gather(const std::string& mine, std::vector<int> lengths) const {
  std::string all(std::accumulate(lengths.begin(), lengths.end(), size_t{0}), '\0');
  std::string input = mine;
  std::vector<int> offsets(size_, 0);  // in the input
  GlooAlgorithms bytes = library_.for_bytes(context_);
  try {
    bytes.functions->allgather(&bytes, input.data(), all.data(), lengths.data(), offsets.data());
  } catch (const std::exception& error) {
    throw Error(
        first_missing(all, lengths) + " of " + std::to_string(size_) +
        " did not come to the allreduce in which all are connected: the ranks did not meet. "
        "It is late, has ended, or does not use omnihvd (import omnihvd on every rank "
        "before hvd.init()). Gloo says: " +
        error.what());
  }
  return all;
}

}  // namespace omnihvd
