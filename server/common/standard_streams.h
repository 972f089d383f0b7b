// stdin, stdout and stderr of a program.

#pragma once

namespace moe {

// Puts something in the place of those that are closed, so that no file or
// connection becomes one of them by accident: reading and writing it fails as
// before. Before threads run.
void OpenStandardStreams();

// What a program returns at its end: `code` if stdout has taken all that was
// printed. Else it says so on stderr, and the code is not 0. (Who writes into a
// pipe that nobody reads any more is ended by SIGPIPE, without a word, unless
// that is ignored.)
int ExitCode(int code);

}  // namespace moe
