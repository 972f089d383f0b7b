#include "server/common/flags.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "experts/base/status_macros.h"
#include "server/common/logging.h"
#include "server/common/read_file.h"
#include "server/common/standard_streams.h"
#include "server/common/version.h"

namespace moe {
namespace {

// Flag files may name flag files, but not without end.
constexpr int kMaxFlagFileDepth = 8;

class Parser {
 public:
  absl::Status Parse(absl::Span<const std::string> args, int depth) {
    for (size_t i = 0; i < args.size(); ++i) {
      const std::string& arg = args[i];
      if (arg == "--") {
        positional_.insert(positional_.end(), args.begin() + i + 1, args.end());
        break;
      }
      if (arg.size() < 2 || arg[0] != '-') {
        positional_.push_back(arg);
        continue;
      }
      absl::string_view name = arg;
      absl::ConsumePrefix(&name, "--") || absl::ConsumePrefix(&name, "-");
      const size_t equals = name.find('=');
      if (equals != absl::string_view::npos) {
        MOE_RETURN_IF_ERROR(Set(name.substr(0, equals),
                                std::string(name.substr(equals + 1)), depth));
      } else if (IsBool(name)) {
        MOE_RETURN_IF_ERROR(Set(name, "true", depth));
      } else if (absl::StartsWith(name, "no") && IsBool(name.substr(2))) {
        MOE_RETURN_IF_ERROR(Set(name.substr(2), "false", depth));
      } else {
        // Known first: an unknown flag must not complain of its value.
        if (name != "flagfile") MOE_RETURN_IF_ERROR(Find(name).status());
        if (i + 1 == args.size()) {
          return absl::InvalidArgumentError(
              absl::StrCat("--", name, ": want a value, got none"));
        }
        MOE_RETURN_IF_ERROR(Set(name, args[++i], depth));
      }
    }
    return absl::OkStatus();
  }

  std::vector<std::string> TakePositional() { return std::move(positional_); }

 private:
  static absl::StatusOr<absl::CommandLineFlag*> Find(absl::string_view name) {
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name.substr(0, 64),
                       ": no such flag; see --help for those there are"));
    }
    return flag;
  }

  static bool IsBool(absl::string_view name) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    return flag != nullptr && flag->IsOfType<bool>();
  }

  absl::Status Set(absl::string_view name, std::string value, int depth) {
    if (name == "flagfile") return ParseFile(value, depth);
    MOE_ASSIGN_OR_RETURN(absl::CommandLineFlag * flag, Find(name));
    if (flag->IsOfType<std::vector<std::string>>()) {
      std::string& list = lists_[std::string(name)];
      absl::StrAppend(&list, list.empty() ? "" : ",", value);
      value = list;
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, ": can't use \"", value, "\"",
                       error.empty() ? "" : ": ", error));
    }
    return absl::OkStatus();
  }

  absl::Status ParseFile(const std::string& path, int depth) {
    if (depth >= kMaxFlagFileDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("--flagfile: want at most ", kMaxFlagFileDepth,
                       " files that name each other, got more"));
    }
    MOE_ASSIGN_OR_RETURN(const std::string file,
                         ReadSmallFile("--flagfile", path));
    std::vector<std::string> lines;
    for (const absl::string_view line : absl::StrSplit(file, '\n')) {
      const absl::string_view text = absl::StripAsciiWhitespace(line);
      if (!text.empty() && text[0] != '#') lines.emplace_back(text);
    }
    return Parse(lines, depth + 1);
  }

  std::vector<std::string> positional_;
  std::map<std::string, std::string> lists_;  // what list flags have so far
};

// Ends a program that has not begun.
[[noreturn]] void Exit(int code) {
  std::exit(code);  // NOLINT(concurrency-mt-unsafe): no thread runs yet
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseFlags(
    absl::Span<const std::string> args) {
  Parser parser;
  MOE_RETURN_IF_ERROR(parser.Parse(args, 0));
  return parser.TakePositional();
}

std::string FlagsHelp(absl::string_view source_file) {
  std::map<std::string, absl::CommandLineFlag*> by_name;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), source_file)) {
      by_name.emplace(name, flag);
    }
  }
  std::string text;
  for (const auto& [name, flag] : by_name) {
    absl::StrAppend(&text, "  --", name, "  ", flag->Help(), " (default: \"",
                    flag->DefaultValue(), "\")\n");
  }
  return text;
}

std::vector<std::string> ParseCommandLineOrExit(int argc, char** argv,
                                                absl::string_view usage,
                                                absl::string_view source_file) {
  OpenStandardStreams();
  const std::vector<std::string> args(argv + 1, argv + argc);
  for (const std::string& arg : args) {
    if (arg == "--") break;
    if (arg == "--help" || arg == "-h") {
      absl::PrintF(
          "%s\n\nFlags:\n%s  --flagfile  Reads flags from a file, one "
          "a line.\n  --version  Prints the version.\n",
          usage, FlagsHelp(source_file));
      Exit(ExitCode(0));
    }
    if (arg == "--version") {
      absl::PrintF("%s %s (%s)\n", absl::StripSuffix(source_file, ".cc"),
                   kVersion, kCommit);
      Exit(ExitCode(0));
    }
  }
  auto positional = ParseFlags(args);
  if (!positional.ok()) {
    PrintError(positional.status().message());
    Exit(2);
  }
  return *std::move(positional);
}

}  // namespace moe
