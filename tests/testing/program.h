// A program that runs beside a test.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace moe {

// Thread-compatible.
class Program {
 public:
  // Starts `command`; its standard output is read here, its standard error goes
  // where the test's goes. It ends with the test, whatever happens to that.
  explicit Program(const std::vector<std::string>& command);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  // Kills it if it still runs.
  ~Program();

  // The next line of its output, without the line's end; empty at the end.
  std::string ReadLine();
  // All output that has not been read yet.
  std::string ReadAll();

  void Signal(int signal);
  // Waits for its end. Returns the exit code, or -1 if a signal ended it.
  int Wait();

 private:
  pid_t pid_ = -1;
  int output_ = -1;  // the reading end
};

}  // namespace moe
