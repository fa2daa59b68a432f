// Handles signals that arrive while C++ waits without Python's lock (the GIL). Python only notes a
// signal, and runs its handler when asked to: without this, Ctrl-C would wait for the sum to end.
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

// Handles signals for one call from Python that waits. One thread.
class Signals {
 public:
  static constexpr std::chrono::milliseconds kEvery{100};

  // Runs wait() without the GIL. If a signal handler, or a Python function that wait() calls,
  // raises an exception that ends the program, raises this exception in place of the Error that it
  // causes.
  template <typename Wait>
  void during(Wait wait) {
    {
      const struct Back {
        ~Back() { here() = to; }
        Signals* to;
      } back{std::exchange(here(), this)};
      try {
        const pybind11::gil_scoped_release release;
        wait();
      } catch (const Error&) {
        if (!raised_) throw;
      }
    }
    if (!raised_) return;
    raised_->restore();
    throw pybind11::error_already_set();
  }

  // Call now and then from within wait(): runs the handlers. Returns the error text once one of
  // them has raised; empty before.
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

  // For the call that this thread is in: keeps an exception that must not become an Error. Needs
  // the GIL.
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

  std::optional<pybind11::error_already_set> raised_;  // destroyed while the GIL is held
  std::string why_;
};

}  // namespace omnihvd
