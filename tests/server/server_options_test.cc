#include "server/server_options.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ParseModelSourceTest, SplitsAtTheFirstEqualsSign) {
  MOE_ASSERT_OK_AND_ASSIGN(ModelSource source,
                           ParseModelSource("olmoe-1B_7b.v2=/models/a=b c"));
  EXPECT_EQ(source.name, "olmoe-1B_7b.v2");
  EXPECT_EQ(source.directory, "/models/a=b c");
  MOE_EXPECT_OK(ParseModelSource(absl::StrCat(std::string(128, 'n'), "=d")));
}

TEST(ParseModelSourceTest, RefusesWhatIsNotNameAndFolder) {
  for (const std::string text :
       {"", "=", "name", "name=", "=dir", ".hidden=dir", "a b=dir", "a/b=dir",
        "caf\xc3\xa9=dir", "a\n=dir"}) {
    EXPECT_THAT(
        ParseModelSource(text),
        StatusIs(kInvalid, AllOf(HasSubstr("--model: want NAME=DIR"),
                                 HasSubstr(absl::StrCat("\"", text, "\"")))));
  }
  EXPECT_THAT(ParseModelSource(absl::StrCat(std::string(129, 'n'), "=d")),
              StatusIs(kInvalid, HasSubstr("--model")));
}

ServerOptions Good() {
  ServerOptions options;
  options.models = {{.name = "a", .directory = "/a"}};
  return options;
}

TEST(ServerOptionsTest, DefaultsAreGoodOnceThereIsAModel) {
  MOE_EXPECT_OK(Good().Validate());
  ServerOptions demo;
  demo.demo = true;
  MOE_EXPECT_OK(demo.Validate());
  ServerOptions repository;
  repository.model_repository = "/models";
  MOE_EXPECT_OK(repository.Validate());
}

TEST(ServerOptionsTest, DefaultsListenOnLoopback) {
  EXPECT_EQ(ServerOptions().listen_address, "127.0.0.1:50051");
  EXPECT_EQ(ServerOptions().metrics_address, "127.0.0.1:9464");
}

TEST(ServerOptionsTest, TakesTheEdgesOfEachRange) {
  ServerOptions options = Good();
  options.listen_address = "[::1]:0";
  options.metrics_address = "localhost:65535";
  options.max_message_bytes = 1024;
  options.max_request_tokens = 1;
  options.max_queue_tokens = 1;
  options.max_queue_bytes = 1;
  options.num_compute_threads = 4096;
  options.drain_timeout = absl::ZeroDuration();
  MOE_EXPECT_OK(options.Validate());
  options.max_message_bytes = std::numeric_limits<int>::max();
  options.listen_address = "unix:/run/moe.sock";
  options.metrics_address = "";  // none
  options.max_queue_delay = absl::Seconds(1);
  MOE_EXPECT_OK(options.Validate());
}

struct BadOptionCase {
  std::string name;
  void (*change)(ServerOptions&);
  std::string message;
};

class ServerOptionsErrorTest : public ::testing::TestWithParam<BadOptionCase> {
};

TEST_P(ServerOptionsErrorTest, NamesTheFlagWantedAndGot) {
  ServerOptions options = Good();
  GetParam().change(options);
  EXPECT_THAT(options.Validate(),
              StatusIs(kInvalid, HasSubstr(GetParam().message)));
}

INSTANTIATE_TEST_SUITE_P(
    All, ServerOptionsErrorTest,
    ::testing::Values(
        BadOptionCase{"NoModel", [](ServerOptions& o) { o.models.clear(); },
                      "--model: want at least one NAME=DIR"},
        BadOptionCase{"SameNameTwice",
                      [](ServerOptions& o) {
                        o.models.push_back({.name = "a", .directory = "/b"});
                      },
                      "--model: want distinct names, got \"a\" twice"},
        BadOptionCase{"NameOfTheDemo",
                      [](ServerOptions& o) {
                        o.demo = true;
                        o.models[0].name = "demo";
                      },
                      "--model: want distinct names, got \"demo\" twice"},
        BadOptionCase{"ListenWithoutPort",
                      [](ServerOptions& o) { o.listen_address = "0.0.0.0"; },
                      "--listen_address: want HOST:PORT, got \"0.0.0.0\""},
        BadOptionCase{"ListenWithoutHost",
                      [](ServerOptions& o) { o.listen_address = ":80"; },
                      "--listen_address: want HOST:PORT, got \":80\""},
        BadOptionCase{"ListenOnEmptyPort",
                      [](ServerOptions& o) { o.listen_address = "a:"; },
                      "--listen_address: want HOST:PORT, got \"a:\""},
        BadOptionCase{"ListenOnWord",
                      [](ServerOptions& o) { o.listen_address = "a:http"; },
                      "--listen_address: want HOST:PORT, got \"a:http\""},
        BadOptionCase{"PortTooLarge",
                      [](ServerOptions& o) { o.listen_address = "a:65536"; },
                      "--listen_address: want HOST:PORT, got \"a:65536\""},
        BadOptionCase{"NegativePort",
                      [](ServerOptions& o) { o.metrics_address = "a:-1"; },
                      "--metrics_address: want HOST:PORT, got \"a:-1\""},
        BadOptionCase{"OneDnnWithInt8",
                      [](ServerOptions& o) {
                        o.engine = ExpertEngine::kOneDnn;
                        o.weight_format = WeightFormat::kInt8;
                      },
                      "--weight_format: want auto or f32 with --engine=onednn, "
                      "got int8"},
        BadOptionCase{"NoBatchTokens",
                      [](ServerOptions& o) { o.max_batch_tokens = 0; },
                      "--max_batch_tokens: want at least 1, got 0"},
        BadOptionCase{"BatchesInFlight",
                      [](ServerOptions& o) { o.max_batches_in_flight = 65; },
                      "--max_batches_in_flight: want 1 to 64, got 65"},
        BadOptionCase{"NegativeQueueDelay",
                      [](ServerOptions& o) {
                        o.max_queue_delay = absl::Milliseconds(-1);
                      },
                      "--max_queue_delay: want 0 to 1s, got -1ms"},
        BadOptionCase{
            "LongQueueDelay",
            [](ServerOptions& o) { o.max_queue_delay = absl::Seconds(2); },
            "--max_queue_delay: want 0 to 1s, got 2s"},
        BadOptionCase{"NoConnections",
                      [](ServerOptions& o) { o.max_connections = 0; },
                      "--max_connections: want at least 1, got 0"},
        BadOptionCase{"NoStreams",
                      [](ServerOptions& o) { o.max_concurrent_streams = 0; },
                      "--max_concurrent_streams: want at least 1, got 0"},
        BadOptionCase{"CertificateWithoutKey",
                      [](ServerOptions& o) { o.tls_cert_file = "cert"; },
                      "--tls_cert_file: want it together with --tls_key_file"},
        BadOptionCase{"KeyWithoutCertificate",
                      [](ServerOptions& o) { o.tls_key_file = "key"; },
                      "--tls_cert_file: want it together with --tls_key_file"},
        BadOptionCase{"AuthoritiesWithoutCertificate",
                      [](ServerOptions& o) { o.tls_client_ca_file = "ca"; },
                      "--tls_client_ca_file: want --tls_cert_file with it"},
        BadOptionCase{"MetricsTokenWithoutTokens",
                      [](ServerOptions& o) { o.auth_metrics = true; },
                      "--auth_metrics: want --auth_token_file with it"},
        BadOptionCase{"MessagesTooSmall",
                      [](ServerOptions& o) { o.max_message_bytes = 1023; },
                      "--max_message_bytes: want 1024 to 2147483647, got "
                      "1023"},
        BadOptionCase{
            "MessagesTooLarge",
            [](ServerOptions& o) { o.max_message_bytes = int64_t{1} << 31; },
            "--max_message_bytes: want 1024 to 2147483647, got "
            "2147483648"},
        BadOptionCase{"NoRequestTokens",
                      [](ServerOptions& o) { o.max_request_tokens = 0; },
                      "--max_request_tokens: want at least 1, got 0"},
        BadOptionCase{"NoQueueTokens",
                      [](ServerOptions& o) { o.max_queue_tokens = -5; },
                      "--max_queue_tokens: want at least 1, got -5"},
        BadOptionCase{"NoQueueBytes",
                      [](ServerOptions& o) { o.max_queue_bytes = 0; },
                      "--max_queue_bytes: want at least 1, got 0"},
        BadOptionCase{"NegativeThreads",
                      [](ServerOptions& o) { o.num_compute_threads = -1; },
                      "--num_compute_threads: want 0 to 4096, got -1"},
        BadOptionCase{"TooManyThreads",
                      [](ServerOptions& o) { o.num_compute_threads = 4097; },
                      "--num_compute_threads: want 0 to 4096, got 4097"},
        BadOptionCase{
            "NoSendTimeout",
            [](ServerOptions& o) { o.send_timeout = absl::ZeroDuration(); },
            "--send_timeout: want 1ms to 24h, got 0"},
        BadOptionCase{
            "EndlessSendTimeout",
            [](ServerOptions& o) { o.send_timeout = absl::InfiniteDuration(); },
            "--send_timeout: want 1ms to 24h, got inf"},
        BadOptionCase{
            "NegativeRepositoryPoll",
            [](ServerOptions& o) { o.repository_poll = absl::Seconds(-1); },
            "--repository_poll: want a finite duration of 0 or more, got -1s"},
        BadOptionCase{"ModelControlWithAndWithoutAToken",
                      [](ServerOptions& o) {
                        o.model_control = true;
                        o.admin_token_file = "tokens";
                      },
                      "--model_control: want it, or --admin_token_file"},
        BadOptionCase{
            "NegativeDrainDelay",
            [](ServerOptions& o) { o.drain_delay = absl::Seconds(-1); },
            "--drain_delay: want a finite duration of 0 or more, got -1s"},
        BadOptionCase{
            "EndlessDrainDelay",
            [](ServerOptions& o) { o.drain_delay = absl::InfiniteDuration(); },
            "--drain_delay: want a finite duration of 0 or more, got inf"},
        BadOptionCase{
            "NegativeDrainTimeout",
            [](ServerOptions& o) { o.drain_timeout = absl::Seconds(-1); },
            "--drain_timeout: want a finite duration of 0 or more, "
            "got -1s"},
        BadOptionCase{"EndlessDrainTimeout",
                      [](ServerOptions& o) {
                        o.drain_timeout = absl::InfiniteDuration();
                      },
                      "--drain_timeout: want a finite duration of 0 or more, "
                      "got inf"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace moe
