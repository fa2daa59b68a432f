// Signals that come while C++ waits without Python's lock. Python only notes them, and runs their
// handlers where it is asked to; so Ctrl-C would wait for as long as the sum does.
#pragma once

#include <pybind11/pybind11.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"

namespace omnihvd {

// What one call from Python that waits does about them. One thread.
class Signals {
 public:
  static constexpr std::chrono::milliseconds kEvery{100};

  // Runs wait() without Python's lock. What a handler, or a function of Python's that wait() calls,
  // raises to end the program is raised instead of the Error to which it leads.
  template <typename Wait>
  void during(Wait wait) {
    Signals* const before = std::exchange(here(), this);
    try {
      const pybind11::gil_scoped_release release;
      wait();
    } catch (const Error&) {
      here() = before;
      if (!raised_) throw;
    } catch (...) {
      here() = before;
      throw;
    }
    here() = before;
    if (!raised_) return;
    raised_->restore();
    throw pybind11::error_already_set();
  }

  // From within wait(), now and then: runs the handlers. What one of them has raised, from then on;
  // empty: nothing.
  std::string run() {
    if (raised_ || syscall(SYS_gettid) != getpid()) return why_;  // Python's main thread runs them
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) return {};
    pybind11::error_already_set error;
    why_ =
        "interrupted in a sum (" + std::string(pybind11::str(error.type().attr("__name__"))) + ")";
    keep(std::move(error));
    return why_;
  }

  // Of the call that this thread is in: an exception that is not to become an Error (with the
  // lock).
  static void keep_if_it_ends_the_program(const pybind11::error_already_set& error) {
    if (here() && !error.matches(PyExc_Exception)) here()->keep(error);
  }

 private:
  static Signals*& here() {
    thread_local Signals* of_this_thread = nullptr;
    return of_this_thread;
  }
  void keep(pybind11::error_already_set error) {
    if (!raised_) raised_.emplace(std::move(error));
  }

  std::optional<pybind11::error_already_set> raised_;  // destroyed with the lock
  std::string why_;
};

}  // namespace omnihvd
