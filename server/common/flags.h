// Command lines: ABSL_FLAGs with errors as Status, so that every program ends
// with the same exit code and one clear line on a mistake.

#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace moe {

// Sets flags from `args` (without the program's name) and returns what is not a
// flag. Understands --name=value, --name value, --bool, --nobool, "--" (the
// rest is not flags) and --flagfile=FILE (one argument per line; '#' starts a
// comment line). A list flag that is given again adds to its list.
//
// Errors: INVALID_ARGUMENT naming the flag, also for a flag file of more than
// a megabyte; NOT_FOUND for a flag file.
// Not thread-safe with respect to other changes of flags.
absl::StatusOr<std::vector<std::string>> ParseFlags(
    absl::Span<const std::string> args);

// One paragraph per flag that `source_file` (a path's end) defines: name, help,
// default.
std::string FlagsHelp(absl::string_view source_file);

// What a program does before its own work: parses the command line, answers
// --help and --version on stdout. Returns what is not a flag.
// Ends the process: with 0 after --help and --version, with 2 on an error.
// Calls OpenStandardStreams first; the program ends with ExitCode.
std::vector<std::string> ParseCommandLineOrExit(int argc, char** argv,
                                                absl::string_view usage,
                                                absl::string_view source_file);

}  // namespace moe
