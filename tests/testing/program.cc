#include "tests/testing/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experts/base/check.h"

namespace moe {

Program::Program(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  int ends[2];
  MOE_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  pid_ = fork();
  MOE_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(ends[1], STDOUT_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  output_ = ends[0];
}

Program::~Program() {
  if (pid_ > 0) {
    Signal(SIGKILL);
    Wait();
  }
  close(output_);
}

std::string Program::ReadLine() {
  std::string line;
  char next = 0;
  while (read(output_, &next, 1) == 1 && next != '\n') line += next;
  return line;
}

std::string Program::ReadAll() {
  std::string all;
  char block[4096];
  for (ssize_t size = 0; (size = read(output_, block, sizeof(block))) > 0;) {
    all.append(block, static_cast<size_t>(size));
  }
  return all;
}

void Program::Signal(int signal) { kill(pid_, signal); }

int Program::Wait() {
  int status = 0;
  MOE_CHECK(waitpid(pid_, &status, 0) == pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace moe
