// What the ranks of a communicator must know of each other before their first sum.
#pragma once

#include <string>
#include <vector>

#include "session/session.h"

namespace omnihvd {

struct Agreement {
  Settings settings;               // this process's own, and the same where all must agree
  std::vector<std::string> hosts;  // of each rank
  std::vector<std::string> words;  // what each has added to its greeting
};

// What this process tells the other ranks, however it reaches them.
class Greeting {
 public:
  Greeting();  // reads the settings

  // Its own: the defaults where they are wrong, which the others are told.
  const Settings& settings() const { return settings_; }
  std::string with(const std::string& word) const;

  // Of each rank. Throws Error on all ranks if one is of another version, or its settings are
  // wrong, with the rank. Rank 0 warns, once, of settings in which ranks differ.
  Agreement read(const std::vector<std::string>& greetings, int own_rank) const;

 private:
  Settings settings_;
  std::string problem_;
};

// Collective: the greetings, without a word. Throws Error as read() does.
Agreement agree(Exchange& exchange);

}  // namespace omnihvd
