#include "server/common/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "server/common/logging.h"

namespace moe {

void OpenStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
    // Takes the lowest number that is free, which is this one. Opened for what
    // a program does not do with it.
    (void)open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

int ExitCode(int code) {
  const bool failed_before = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) == 0 && !failed_before) return code;
  // Who failed earlier has not left a reason.
  PrintError(absl::StrCat(
      "stdout: can't write",
      errno == 0 ? "" : ": " + std::generic_category().message(errno)));
  return code == 0 ? 2 : code;
}

}  // namespace moe
