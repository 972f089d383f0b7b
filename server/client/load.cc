#include "server/client/load.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "experts/base/status_macros.h"
#include "grpcpp/alarm.h"
#include "nlohmann/json.hpp"
#include "server/common/json_file.h"
#include "server/common/logging.h"
#include "server/wire/grpc_status.h"
#include "server/wire/tensor_codec.h"

namespace moe {
namespace {

using Clock = std::chrono::steady_clock;

// Requests are made of runs of these rows.
constexpr int64_t kPoolRows = 128;

// After a refusal that does not say when to try again.
constexpr std::chrono::milliseconds kDefaultBackoff{10};

// Times in buckets of 1% width.
class TimeHistogram {
 public:
  void Add(double seconds) {
    const double bucket =
        std::log(std::max(seconds, kSmallest) / kSmallest) / std::log(kWidth);
    ++counts_[std::min(static_cast<size_t>(bucket), kBuckets - 1)];
    ++count_;
    sum_ += seconds;
    max_ = std::max(max_, seconds);
  }
  // The time that the given share of all were within; 0 if there are none.
  double Quantile(double share) const {
    auto rank =
        static_cast<int64_t>(std::ceil(share * static_cast<double>(count_)));
    for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
      rank -= counts_[bucket];
      if (rank <= 0 && count_ > 0) {
        const double middle =
            kSmallest * std::pow(kWidth, static_cast<double>(bucket) + 0.5);
        return std::min(middle, max_);
      }
    }
    return max_;
  }
  double max() const { return max_; }
  double mean() const {
    return count_ > 0 ? sum_ / static_cast<double>(count_) : 0;
  }
  int64_t count() const { return count_; }

 private:
  static constexpr double kSmallest = 1e-6;  // seconds
  static constexpr double kWidth = 1.01;
  static constexpr size_t kBuckets = 2200;  // up to an hour
  std::array<int64_t, kBuckets> counts_{};
  int64_t count_ = 0;
  double sum_ = 0;
  double max_ = 0;
};

// What has been measured so far.
struct Tally {
  int64_t requests = 0;  // answered, with or without an error
  int64_t tokens = 0;    // of those without
  TimeHistogram latency;
  TimeHistogram error_latency;
  // Those without an error whose responses say where the time went.
  TimeHistogram queue;
  TimeHistogram compute;
  TimeHistogram overhead;                 // latency without both
  TimeHistogram beyond_compute;           // latency without compute
  std::map<std::string, int64_t> errors;  // by code
  std::string first_error;
  int64_t wrong = 0;
  int64_t inexact = 0;  // right, but not the same bytes
};

nlohmann::ordered_json TimesJson(const TimeHistogram& times) {
  return {{"p50", times.Quantile(0.5)},
          {"p90", times.Quantile(0.9)},
          {"p99", times.Quantile(0.99)},
          {"max", times.max()},
          {"mean", times.mean()}};
}

// One kind of request: a layer and an element type.
struct Kind {
  int layer = 0;
  v1::DType dtype = v1::F32;
  // [kPoolRows, d_model], encoded; the same for all layers.
  std::shared_ptr<const std::string> rows;
  std::vector<v1::Tensor> expected;  // [1, d_model] of each row; with check
};

// Distance of neighbouring values of `dtype`, relative to the value: sums that
// differ in the last bit may round to either.
double Spacing(v1::DType dtype) {
  return dtype == v1::BF16 ? 0x1p-7 : dtype == v1::F16 ? 0x1p-10 : 0;
}

// Makes requests and checks their responses. Thread-safe once prepared.
class Workload {
 public:
  explicit Workload(const LoadRunOptions& options) : options_(options) {}

  absl::Status Prepare(const Connection& connection) {
    MOE_ASSIGN_OR_RETURN(const v1::ModelInfo model,
                         connection.GetModel(options_.model));
    d_model_ = model.d_model();
    MOE_RETURN_IF_ERROR(CheckTokens("--tokens", options_.tokens.max(), model));
    std::vector<int> layers = options_.layers;
    if (layers.empty()) {
      for (const auto& layer : model.layers()) layers.push_back(layer.layer());
    }
    if (layers.empty()) {
      return absl::InternalError("response layers: want some, got none");
    }
    std::mt19937_64 random(options_.seed);
    std::normal_distribution<float> normal;
    std::vector<float> rows(static_cast<size_t>(kPoolRows * d_model_));
    for (float& value : rows) value = normal(random);
    for (const v1::DType dtype : options_.dtypes) {
      v1::Tensor encoded;
      Encode(ConstMatrix(rows.data(), kPoolRows, d_model_), dtype, encoded);
      const auto shared = std::make_shared<const std::string>(
          std::move(*encoded.mutable_data()));
      for (const int layer : layers) {
        kinds_.push_back(
            {.layer = layer, .dtype = dtype, .rows = shared, .expected = {}});
      }
    }
    if (!options_.check) return absl::OkStatus();
    for (Kind& kind : kinds_) {
      for (int64_t row = 0; row < kPoolRows; ++row) {
        v1::ForwardRequest request;
        Fill(kind, row, 1, &request);
        MOE_ASSIGN_OR_RETURN(v1::ForwardResponse response,
                             connection.Forward(request));
        if (!HasShape(kind, 1, response.output())) {
          return absl::InternalError(
              "response output: want the type and shape of hidden_states");
        }
        kind.expected.push_back(std::move(*response.mutable_output()));
      }
    }
    return absl::OkStatus();
  }

  // What was asked for, to check the response.
  struct Asked {
    const Kind* kind = nullptr;
    int64_t first_row = 0;
    int64_t tokens = 0;
  };

  Asked Draw(std::mt19937_64& random, v1::ForwardRequest* request) const {
    const Kind& kind = kinds_[random() % kinds_.size()];
    const Asked asked{
        .kind = &kind,
        .first_row = static_cast<int64_t>(random() % uint64_t{kPoolRows}),
        .tokens = options_.tokens.Draw(random)};
    Fill(kind, asked.first_row, asked.tokens, request);
    return asked;
  }

  enum class Verdict { kExact, kClose, kWrong };
  Verdict Check(const Asked& asked, const v1::ForwardResponse& response) const {
    const v1::Tensor& output = response.output();
    const Kind& kind = *asked.kind;
    if (!HasShape(kind, asked.tokens, output)) return Verdict::kWrong;
    const size_t row_bytes = RowBytes(kind);
    Verdict verdict = Verdict::kExact;
    for (int64_t t = 0; t < asked.tokens; ++t) {
      const v1::Tensor& want =
          kind.expected[static_cast<size_t>((asked.first_row + t) % kPoolRows)];
      const char* got =
          output.data().data() + static_cast<size_t>(t) * row_bytes;
      if (want.data().compare(0, row_bytes, got, row_bytes) == 0) continue;
      verdict = Verdict::kClose;
      if (!IsClose(want, got)) return Verdict::kWrong;
    }
    return verdict;
  }

 private:
  size_t RowBytes(const Kind& kind) const {
    return static_cast<size_t>(d_model_ * ElementBytes(kind.dtype));
  }

  // Whether it can be what a request of `tokens` rows gives.
  bool HasShape(const Kind& kind, int64_t tokens,
                const v1::Tensor& output) const {
    return output.dtype() == kind.dtype && output.shape_size() == 2 &&
           output.shape(0) == tokens && output.shape(1) == d_model_ &&
           output.data().size() == static_cast<size_t>(tokens) * RowBytes(kind);
  }

  void Fill(const Kind& kind, int64_t first_row, int64_t tokens,
            v1::ForwardRequest* request) const {
    request->set_model(options_.model);
    request->set_layer(kind.layer);
    v1::Tensor& tensor = *request->mutable_hidden_states();
    tensor.set_dtype(kind.dtype);
    tensor.clear_shape();
    tensor.add_shape(tokens);
    tensor.add_shape(d_model_);
    std::string& data = *tensor.mutable_data();
    data.clear();
    const int64_t row_bytes = d_model_ * ElementBytes(kind.dtype);
    data.reserve(static_cast<size_t>(tokens * row_bytes));
    for (int64_t row = first_row; tokens > 0; row = 0) {
      const int64_t run = std::min(tokens, kPoolRows - row);
      data.append(*kind.rows, static_cast<size_t>(row * row_bytes),
                  static_cast<size_t>(run * row_bytes));
      tokens -= run;
    }
  }

  bool IsClose(const v1::Tensor& want, const char* got) const {
    std::vector<float> floats(static_cast<size_t>(2 * d_model_));
    const WireMatrix row{
        .dtype = want.dtype(), .rows = 1, .cols = d_model_, .data = got};
    WireMatrix want_row = row;
    want_row.data = want.data().data();
    float* a = floats.data();
    float* b = a + d_model_;
    Decode(row, Matrix(a, 1, d_model_));
    Decode(want_row, Matrix(b, 1, d_model_));
    float largest = 0;
    for (int64_t c = 0; c < d_model_; ++c) {
      largest = std::max(largest, std::abs(b[c]));
    }
    const double allowed =
        std::max(options_.tolerance, Spacing(want.dtype())) * largest;
    for (int64_t c = 0; c < d_model_; ++c) {
      if (!(std::abs(a[c] - b[c]) <= allowed)) return false;  // or NaN
    }
    return true;
  }

  const LoadRunOptions& options_;
  int64_t d_model_ = 0;
  std::vector<Kind> kinds_;
};

// Runs requests, and takes the measurements. Thread-safe.
class LoadRun {
 public:
  LoadRun(const LoadRunOptions& options, const Workload& workload,
          std::vector<Connection> connections)
      : options_(options),
        workload_(workload),
        connections_(std::move(connections)) {}

  // Runs from warm-up to end.
  void Run() {
    const Clock::time_point start = Clock::now();
    measure_from_ = start + absl::ToChronoNanoseconds(options_.warmup);
    const Clock::time_point end =
        measure_from_ + absl::ToChronoNanoseconds(options_.duration);
    std::vector<std::thread> threads;
    if (options_.stream) {
      for (size_t i = 0; i < connections_.size(); ++i) {
        threads.emplace_back([this, i] { RunStream(i); });
      }
    } else if (options_.rate > 0) {
      threads.emplace_back([this] { RunOpenLoop(); });
    } else {
      for (int i = 0; i < options_.concurrency; ++i) StartNext();
    }
    const bool terminal = isatty(STDERR_FILENO) == 1;
    const std::chrono::seconds step(terminal ? 1 : 10);
    Clock::time_point next = start + step;
    while (!stopping_ && Clock::now() < end) {
      {
        absl::MutexLock lock(&mutex_);
        stop_.WaitWithTimeout(
            &mutex_, absl::FromChrono(std::min(next, end) - Clock::now()));
      }
      if (Clock::now() < next) continue;
      ShowProgress(std::chrono::duration<double>(Clock::now() - start).count(),
                   terminal);
      next += step;
    }
    measured_seconds_ =
        std::max(std::chrono::duration<double>(std::min(Clock::now(), end) -
                                               measure_from_)
                     .count(),
                 1e-9);
    stopping_ = true;
    if (terminal) {
      LogText("\n");
      FlushLog();  // before the result, on the same terminal
    }
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return in_flight_ == 0;
    };
    mutex_.Await(absl::Condition(&idle));
  }

  double seconds() const { return measured_seconds_; }
  Tally tally() const {
    absl::MutexLock lock(&mutex_);
    return tally_;
  }

 private:
  struct Request {
    v1::ForwardRequest request;
    Workload::Asked asked;
    Clock::time_point start;
  };
  struct UnaryCall : Request {
    const Connection* connection = nullptr;
    grpc::ClientContext context;
    v1::ForwardResponse response;
    grpc::Alarm backoff;
  };

  void Draw(Request* request) {
    std::mt19937_64 random(options_.seed ^
                           next_seed_.fetch_add(0x9e3779b97f4a7c15ULL));
    request->asked = workload_.Draw(random, &request->request);
  }

  std::unique_ptr<UnaryCall> MakeCall() {
    auto call = std::make_unique<UnaryCall>();
    Draw(call.get());
    call->connection =
        &connections_[next_connection_.fetch_add(1) % connections_.size()];
    return call;
  }

  // Begins a unary call whose latency counts from now on: to make it up is not
  // part of that.
  void StartNext() {
    std::unique_ptr<UnaryCall> call = MakeCall();
    const Clock::time_point start = Clock::now();
    Start(std::move(call), start);
  }

  void Start(std::unique_ptr<UnaryCall> owned, Clock::time_point start) {
    owned->start = start;
    owned->connection->Prepare(&owned->context);
    {
      absl::MutexLock lock(&mutex_);
      ++in_flight_;
    }
    UnaryCall* call = owned.release();  // the callback takes it back
    call->connection->stub().async()->Forward(
        &call->context, &call->request, &call->response,
        [this, call](const grpc::Status& status) { CallDone(call, status); });
  }

  void CallDone(UnaryCall* done, const grpc::Status& status) {
    std::unique_ptr<UnaryCall> call(done);
    Record(*call, status.error_code(), status.error_message(), call->response);
    const bool again = options_.rate <= 0 && !stopping_;
    if (again && status.ok()) {
      call.reset();
      StartNext();
    } else if (again) {
      // Backs off as told.
      std::chrono::milliseconds pause = kDefaultBackoff;
      const auto& trailers = call->context.GetServerTrailingMetadata();
      const auto hint = trailers.find("grpc-retry-pushback-ms");
      int64_t millis = 0;
      if (hint != trailers.end() &&
          absl::SimpleAtoi(
              absl::string_view(hint->second.data(), hint->second.size()),
              &millis)) {
        pause = std::chrono::milliseconds(std::clamp<int64_t>(millis, 1, 5000));
      }
      UnaryCall* waiting = call.release();  // the alarm takes it back
      waiting->backoff.Set(std::chrono::system_clock::now() + pause,
                           [this, waiting](bool) {
                             std::unique_ptr<UnaryCall> over(waiting);
                             if (!stopping_) StartNext();
                             Leave(std::move(over));
                           });
      return;
    }
    Leave(std::move(call));
  }

  // Run may return from here on, and with it what calls depend on.
  void Leave(std::unique_ptr<UnaryCall> call) {
    call.reset();
    absl::MutexLock lock(&mutex_);
    --in_flight_;
  }

  void RunOpenLoop() {
    std::mt19937_64 random(options_.seed + 1);
    std::exponential_distribution<double> pause(options_.rate);
    Clock::time_point next = Clock::now();
    while (!stopping_) {
      next += std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(pause(random)));
      std::unique_ptr<UnaryCall> call = MakeCall();
      std::this_thread::sleep_until(next);
      Start(std::move(call), next);
    }
  }

  // Keeps a share of the concurrency in flight over one stream.
  void RunStream(size_t index) {
    const auto window = static_cast<size_t>(std::max<int64_t>(
        1, options_.concurrency / static_cast<int64_t>(connections_.size())));
    while (!stopping_) {
      grpc::ClientContext context;
      connections_[index].Prepare(&context);
      context.set_deadline(std::chrono::system_clock::time_point::max());
      const auto stream = connections_[index].stub().ForwardStream(&context);
      absl::Mutex mutex;
      std::deque<Request> sent;
      bool over = false;
      std::thread reader([&] {
        v1::ForwardStreamResponse response;
        while (stream->Read(&response)) {
          Request request;
          {
            absl::MutexLock lock(&mutex);
            if (sent.empty()) {
              context.TryCancel();  // more responses than requests
              break;
            }
            request = std::move(sent.front());
            sent.pop_front();
          }
          Record(request, static_cast<grpc::StatusCode>(response.code()),
                 response.message(), response.response());
        }
        absl::MutexLock lock(&mutex);
        over = true;
      });
      while (!stopping_) {
        Request request;
        Draw(&request);
        const auto may_send = [&] { return over || sent.size() < window; };
        {
          absl::MutexLock lock(&mutex, absl::Condition(&may_send));
          if (over) break;
          request.start = Clock::now();
          sent.push_back(request);
        }
        if (!stream->Write(request.request)) break;
      }
      stream->WritesDone();
      reader.join();
      const grpc::Status status = stream->Finish();
      for (const Request& lost : sent) {
        Record(lost, status.error_code(), status.error_message(), {});
      }
      if (!status.ok()) absl::SleepFor(absl::FromChrono(kDefaultBackoff));
    }
  }

  void Record(const Request& request, grpc::StatusCode code,
              const std::string& message, const v1::ForwardResponse& response) {
    const Clock::time_point now = Clock::now();
    Workload::Verdict verdict = Workload::Verdict::kExact;
    if (code == grpc::StatusCode::OK && options_.check) {
      verdict = workload_.Check(request.asked, response);
    }
    absl::MutexLock lock(&mutex_);
    tally_.wrong += verdict == Workload::Verdict::kWrong ? 1 : 0;
    tally_.inexact += verdict == Workload::Verdict::kClose ? 1 : 0;
    if (request.start < measure_from_ || stopping_) return;
    const double seconds =
        std::chrono::duration<double>(now - request.start).count();
    ++tally_.requests;
    if (code == grpc::StatusCode::OK) {
      tally_.tokens += request.asked.tokens;
      tally_.latency.Add(seconds);
      if (response.has_timing()) RecordTiming(seconds, response.timing());
    } else {
      tally_.error_latency.Add(seconds);
      ++tally_.errors[absl::StatusCodeToString(
          static_cast<absl::StatusCode>(code))];
      if (tally_.first_error.empty()) tally_.first_error = message;
    }
    if (options_.max_requests > 0 && tally_.requests >= options_.max_requests) {
      stopping_ = true;
      stop_.Signal();
    }
  }

  void RecordTiming(double latency, const v1::ForwardTiming& timing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double beyond_compute = latency - timing.compute_seconds();
    tally_.queue.Add(timing.queue_seconds());
    tally_.compute.Add(timing.compute_seconds());
    tally_.overhead.Add(beyond_compute - timing.queue_seconds());
    tally_.beyond_compute.Add(beyond_compute);
  }

  void ShowProgress(double elapsed, bool terminal) const {
    const Tally now = tally();
    int64_t errors = 0;
    for (const auto& [code, count] : now.errors) errors += count;
    const double measured = elapsed - absl::ToDoubleSeconds(options_.warmup);
    LogText(absl::StrFormat(
        "%s%4.0f s  %d requests  %.0f tokens/s  p50 %.3f ms  p99 %.3f "
        "ms  %d errors%s",
        terminal ? "\r" : "", elapsed, now.requests,
        measured > 0 ? static_cast<double>(now.tokens) / measured : 0.0,
        1e3 * now.latency.Quantile(0.5), 1e3 * now.latency.Quantile(0.99),
        errors, terminal ? "   " : "\n"));
  }

  const LoadRunOptions& options_;
  const Workload& workload_;
  const std::vector<Connection> connections_;
  std::atomic<uint64_t> next_seed_ = 0;
  std::atomic<size_t> next_connection_ = 0;
  std::atomic<bool> stopping_ = false;
  Clock::time_point measure_from_;
  double measured_seconds_ = 0;

  mutable absl::Mutex mutex_;
  absl::CondVar stop_;
  int64_t in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  Tally tally_ ABSL_GUARDED_BY(mutex_);
};

nlohmann::ordered_json ResultJson(const Tally& tally, double seconds) {
  nlohmann::ordered_json json = {
      {"requests", tally.requests},
      {"tokens_per_s", static_cast<double>(tally.tokens) / seconds},
      {"requests_per_s", static_cast<double>(tally.requests) / seconds},
      {"seconds", seconds},
      {"latency_seconds", TimesJson(tally.latency)}};
  if (tally.queue.count() > 0) {
    json["queue_seconds"] = TimesJson(tally.queue);
    json["compute_seconds"] = TimesJson(tally.compute);
    json["overhead_seconds"] = TimesJson(tally.overhead);
    json["beyond_compute_seconds"] = TimesJson(tally.beyond_compute);
  }
  json["error_latency_seconds"] = TimesJson(tally.error_latency);
  json["errors"] = nlohmann::ordered_json::object();
  for (const auto& [code, count] : tally.errors) json["errors"][code] = count;
  json["wrong"] = tally.wrong;
  json["inexact"] = tally.inexact;
  return json;
}

void PrintResult(const LoadRunOptions& options, const Tally& tally,
                 double seconds) {
  absl::PrintF("%d requests in %.1f s: %.1f requests/s, %.1f tokens/s\n",
               tally.requests, seconds,
               static_cast<double>(tally.requests) / seconds,
               static_cast<double>(tally.tokens) / seconds);
  const auto show = [](const char* what, const TimeHistogram& times) {
    if (times.count() == 0) return;
    absl::PrintF("%s: p50 %.3f ms, p90 %.3f ms, p99 %.3f ms, max %.3f ms\n",
                 what, 1e3 * times.Quantile(0.5), 1e3 * times.Quantile(0.9),
                 1e3 * times.Quantile(0.99), 1e3 * times.max());
  };
  show("latency", tally.latency);
  show("  queue", tally.queue);
  show("  compute", tally.compute);
  show("  overhead", tally.overhead);
  show("latency of errors", tally.error_latency);
  if (tally.error_latency.count() > 0) {
    for (const auto& [code, count] : tally.errors) {
      absl::PrintF("errors: %s %d\n", code, count);
    }
    absl::PrintF("first error: %s\n", tally.first_error);
  }
  if (tally.latency.count() == 0) absl::PrintF("no request succeeded\n");
  if (options.check) {
    absl::PrintF("answers checked: %d wrong, %d right but not the same bytes\n",
                 tally.wrong, tally.inexact);
  }
}

}  // namespace

absl::StatusOr<TokenDistribution> TokenDistribution::Parse(
    absl::string_view text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokens: want a number, a range or weighted parts as in 8, 1-16 or "
        "1:9,512:1; got \"",
        text, "\""));
  };
  TokenDistribution distribution;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> weighted = absl::StrSplit(part, ':');
    const std::vector<absl::string_view> range =
        absl::StrSplit(weighted[0], '-');
    Part parsed{.low = 0, .high = 0, .weight = 1};
    if (weighted.size() > 2 || range.size() > 2 ||
        !absl::SimpleAtoi(range.front(), &parsed.low) ||
        !absl::SimpleAtoi(range.back(), &parsed.high) || parsed.low < 0 ||
        parsed.high < parsed.low ||
        (weighted.size() == 2 &&
         !absl::SimpleAtod(weighted[1], &parsed.weight)) ||
        !(parsed.weight > 0) || !std::isfinite(parsed.weight)) {
      return refuse();
    }
    distribution.total_weight_ += parsed.weight;
    distribution.parts_.push_back(parsed);
  }
  return distribution;
}

int64_t TokenDistribution::Draw(std::mt19937_64& random) const {
  double weight =
      std::uniform_real_distribution<double>(0, total_weight_)(random);
  for (const Part& part : parts_) {
    weight -= part.weight;
    if (weight > 0 && &part != &parts_.back()) continue;
    return std::uniform_int_distribution<int64_t>(part.low, part.high)(random);
  }
  return 0;  // no parts
}

int64_t TokenDistribution::max() const {
  int64_t max = 0;
  for (const Part& part : parts_) max = std::max(max, part.high);
  return max;
}

absl::StatusOr<bool> RunLoadTest(const LoadRunOptions& options) {
  if (options.concurrency < 1 || options.concurrency > 100'000) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--concurrency: want 1 to 100000, got ", options.concurrency));
  }
  if (options.connections < 1 || options.connections > 10'000) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--connections: want 1 to 10000, got ", options.connections));
  }
  if (!(options.rate >= 0) || !std::isfinite(options.rate)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate: want 0 or more, got ", options.rate));
  }
  if (options.stream && options.rate > 0) {
    return absl::InvalidArgumentError(
        "--rate: want 0 with --stream, which is a closed loop");
  }
  std::vector<Connection> connections;
  for (int i = 0; i < options.connections; ++i) {
    MOE_ASSIGN_OR_RETURN(Connection connection,
                         Connection::Open(options.connection));
    connections.push_back(std::move(connection));
  }
  Workload workload(options);
  MOE_RETURN_IF_ERROR(workload.Prepare(connections.front()));
  LoadRun run(options, workload, std::move(connections));
  run.Run();
  const Tally tally = run.tally();
  PrintResult(options, tally, run.seconds());
  if (!options.json_file.empty()) {
    MOE_RETURN_IF_ERROR(WriteJsonFile("--json", options.json_file,
                                      ResultJson(tally, run.seconds())));
  }
  return tally.wrong == 0 && tally.latency.count() > 0;
}

}  // namespace moe
