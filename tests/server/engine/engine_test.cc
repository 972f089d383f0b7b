#include "server/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/models/model.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/status_matchers.h"

namespace moe {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

constexpr int kDenseLayer = 2;  // of the demo model

// Hidden states that depend on the seed only.
std::vector<float> RandomRows(int64_t tokens, int64_t d_model, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(tokens * d_model));
  for (float& value : rows) value = normal(generator);
  return rows;
}

struct Response {
  std::vector<float> output;  // [tokens, d_model]
  std::vector<int32_t> ids;   // [tokens, k]
  std::vector<float> weights;
  std::vector<float> logits;  // route_only
};

struct RequestOptions {
  uint32_t seed = 1;
  // Token t goes to experts (t + j) % num_experts for j < given_k.
  int64_t given_k = 0;
  ResponseParts parts = {ResponsePart::kOutput};
  int64_t bytes = 0;
  SteadyTime deadline = SteadyTime::max();
};

// Keeps what it is given, and the response. May hold the engine's thread in
// Decode, so that requests pile up behind it.
class TestRequest final : public RequestCodec, public RequestObserver {
 public:
  TestRequest(ServedLayer layer, int64_t tokens,
              const RequestOptions& options = {})
      : rows_(RandomRows(tokens, layer.layer->ffn->d_model(), options.seed)),
        request_({.layer = std::move(layer),
                  .tokens = tokens,
                  .given_k = options.given_k,
                  .parts = options.parts},
                 options.deadline, options.bytes, this, this) {}

  EngineRequest* get() { return &request_; }
  void SpoilFirstValue(float value) { rows_.front() = value; }
  void SetRows(std::vector<float> rows) { rows_ = std::move(rows); }
  void Cancel() { cancelled_ = true; }
  void HoldEngine() { hold_ = true; }
  void WaitUntilRunning() { running_.WaitForNotification(); }
  void LetGo() { let_go_.Notify(); }

  const absl::Status& Wait() {
    done_.WaitForNotification();
    return status_;
  }
  bool finished() const { return done_.HasBeenNotified(); }
  const Response& response() const { return response_; }
  int parts() const { return parts_; }
  // As of each part.
  const std::vector<EngineTiming>& timings() const { return timings_; }

  bool Cancelled() const override { return cancelled_; }
  void Decode(int64_t first, Matrix hidden_states) const override {
    if (hold_ && first == 0) {
      running_.Notify();
      let_go_.WaitForNotification();
    }
    for (int64_t r = 0; r < hidden_states.rows(); ++r) {
      std::copy_n(&rows_[static_cast<size_t>((first + r) * ffn().d_model())],
                  ffn().d_model(), hidden_states.Row(r));
    }
  }
  void DecodeRouting(int64_t first, MatrixView<int32_t> ids,
                     Matrix weights) const override {
    for (int64_t r = 0; r < ids.rows(); ++r) {
      for (int64_t j = 0; j < ids.cols(); ++j) {
        ids.Row(r)[j] =
            static_cast<int32_t>((first + r + j) % ffn().num_experts());
        weights.Row(r)[j] = 0.5F / static_cast<float>(j + 1);
      }
    }
  }
  void LayOut() override {
    EXPECT_FALSE(laid_out_);
    laid_out_ = true;
  }
  void Encode(int64_t first, const EngineResult& rows) override {
    ++parts_;
    timings_.push_back(rows.timing);
    const auto place = [&](auto matrix, auto& to) {
      if (matrix.rows() == 0) return;
      to.resize(static_cast<size_t>(request_.tokens() * matrix.cols()));
      for (int64_t r = 0; r < matrix.rows(); ++r) {
        std::copy_n(matrix.Row(r), matrix.cols(),
                    to.begin() + (first + r) * matrix.cols());
      }
    };
    EXPECT_TRUE(laid_out_);
    place(rows.output, response_.output);
    place(rows.routing.ids, response_.ids);
    place(rows.routing.weights, response_.weights);
    place(rows.router_logits, response_.logits);
  }
  void OnFinished(const absl::Status& status) override {
    status_ = status;
    done_.Notify();
  }

 private:
  const FfnLayer& ffn() const { return request_.call().ffn(); }

  std::vector<float> rows_;
  std::atomic<bool> cancelled_ = false;
  bool hold_ = false;
  mutable absl::Notification running_;
  mutable absl::Notification let_go_;
  bool laid_out_ = false;
  Response response_;
  int parts_ = 0;
  std::vector<EngineTiming> timings_;
  absl::Status status_;
  absl::Notification done_;
  EngineRequest request_;
};

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() : executor_(2) {
    auto served = std::make_shared<ServedModel>();
    served->name = "demo";
    served->model = *LoadDemoModel({}, executor_);
    std::vector<LayerCost> costs;
    for (const ModelLayer& layer : served->model->layers()) {
      costs.push_back(CostOf(layer));
    }
    served->layer_metrics = metrics_.AddModel("demo", costs).layers;
    served_ = std::move(served);
  }

  void StartEngine(const EngineOptions& options = {}) {
    engine_ =
        std::make_unique<Engine>(options, &executor_, BestKernels(), &metrics_);
  }

  ServedLayer Layer(size_t index) const {
    return {.served = served_,
            .layer = &served_->model->layers()[index],
            .metrics = served_->layer_metrics[index].get()};
  }
  std::unique_ptr<TestRequest> Make(size_t layer, int64_t tokens,
                                    const RequestOptions& options = {}) const {
    return std::make_unique<TestRequest>(Layer(layer), tokens, options);
  }

  // A request that runs until it is let go.
  std::unique_ptr<TestRequest> OccupyEngine() {
    auto blocker = Make(0, 1);
    blocker->HoldEngine();
    MOE_EXPECT_OK(engine_->Submit(blocker->get()));
    blocker->WaitUntilRunning();
    return blocker;
  }

  // The sum of a metric over its label values that contain `labels`.
  double Metric(const std::string& name, const std::string& label = "") const {
    double sum = 0;
    for (const auto& family : metrics_.registry()->Collect()) {
      if (family.name != name) continue;
      for (const auto& metric : family.metric) {
        bool matches = label.empty();
        for (const auto& l : metric.label) matches |= l.value == label;
        if (!matches) continue;
        sum += metric.counter.value + metric.gauge.value +
               static_cast<double>(metric.histogram.sample_count);
      }
    }
    return sum;
  }

  // A request's response if it is alone.
  Response Alone(TestRequest& request) {
    MOE_EXPECT_OK(engine_->Submit(request.get()));
    MOE_EXPECT_OK(request.Wait());
    return request.response();
  }

  // The same bytes, whoever shares the batch.
  static void ExpectSame(const Response& got, const Response& want) {
    EXPECT_EQ(got.ids, want.ids);
    EXPECT_EQ(got.weights, want.weights);
    EXPECT_EQ(got.logits, want.logits);
    EXPECT_EQ(got.output, want.output);
  }

  FakeClock clock_;
  Metrics metrics_;
  Executor executor_;
  std::shared_ptr<const ServedModel> served_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, AnswersRequestsOfEveryLayer) {
  StartEngine();
  for (size_t layer = 0; layer < 3; ++layer) {
    SCOPED_TRACE(layer);
    auto request = Make(layer, 3);
    const Response response = Alone(*request);
    EXPECT_EQ(response.output.size(), 3 * 256U);
    EXPECT_EQ(response.ids.size(), layer == kDenseLayer ? 0U : 3 * 4U);
  }
}

TEST_F(EngineTest, WaitingRequestsShareABatchAndGetTheirOwnRows) {
  StartEngine();
  std::vector<Response> alone;
  for (uint32_t i = 0; i < 8; ++i) {
    auto request = Make(0, 1 + i % 3, {.seed = i});
    alone.push_back(Alone(*request));
  }
  const double batches = Metric("moe_batch_tokens");
  auto blocker = OccupyEngine();
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (uint32_t i = 0; i < 8; ++i) {
    requests.push_back(Make(0, 1 + i % 3, {.seed = i}));
    MOE_ASSERT_OK(engine_->Submit(requests.back()->get()));
  }
  EXPECT_EQ(Metric("moe_queue_tokens"), 1 + 2 + 3 + 1 + 2 + 3 + 1 + 2);
  blocker->LetGo();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    MOE_EXPECT_OK(requests[i]->Wait());
    ExpectSame(requests[i]->response(), alone[i]);
  }
  MOE_EXPECT_OK(blocker->Wait());
  EXPECT_EQ(Metric("moe_batch_tokens"), batches + 2)
      << "the blocker's and one for all";
  EXPECT_EQ(Metric("moe_queue_tokens"), 0);
}

TEST_F(EngineTest, LargeRequestRunsInPartsWithTheSameResponse) {
  StartEngine();
  auto whole = Make(1, 100);
  const Response want = Alone(*whole);
  EXPECT_EQ(whole->parts(), 1);
  engine_.reset();

  StartEngine({.batching = {.max_batch_tokens = 16}});
  auto split = Make(1, 100);
  const Response got = Alone(*split);
  EXPECT_EQ(split->parts(), 7);
  ExpectSame(got, want);
}

TEST_F(EngineTest, TimingIsTheSumOverThePartsOfARequest) {
  StartEngine({.batching = {.max_batch_tokens = 16}});
  auto split = Make(1, 100);
  const auto start = std::chrono::steady_clock::now();
  Alone(*split);
  const auto elapsed = std::chrono::steady_clock::now() - start;
  const std::vector<EngineTiming>& timings = split->timings();
  ASSERT_EQ(timings.size(), 7U);
  EXPECT_GT(timings.front().computed.count(), 0);
  for (size_t i = 1; i < timings.size(); ++i) {
    EXPECT_GT(timings[i].computed, timings[i - 1].computed) << i;
    EXPECT_GT(timings[i].queued, timings[i - 1].queued) << i;
  }
  EXPECT_LE(timings.back().queued + timings.back().computed, elapsed);
}

TEST_F(EngineTest, TimingTellsWaitingFromComputing) {
  StartEngine();
  auto blocker = OccupyEngine();
  auto request = Make(0, 1);
  MOE_ASSERT_OK(engine_->Submit(request->get()));
  const auto waits = std::chrono::steady_clock::now();
  auto cancelled = Make(0, 1);
  cancelled->Cancel();
  EXPECT_THAT(engine_->Submit(cancelled->get()),
              StatusIs(absl::StatusCode::kCancelled, _));
  const auto waited = std::chrono::steady_clock::now() - waits;
  blocker->LetGo();
  MOE_EXPECT_OK(request->Wait());
  MOE_EXPECT_OK(blocker->Wait());
  EXPECT_GE(request->timings().front().queued, waited);
  // Held while its rows were read, which is neither.
  const EngineTiming& held = blocker->timings().front();
  EXPECT_GT(held.computed.count(), 0);
  EXPECT_LT(held.computed, request->timings().front().queued);
}

TEST_F(EngineTest, RoutingsOfDifferentWidthDoNotMix) {
  StartEngine();
  std::vector<Response> alone;
  for (int64_t k = 1; k <= 6; ++k) {
    auto request = Make(0, 5, {.seed = static_cast<uint32_t>(k), .given_k = k});
    alone.push_back(Alone(*request));
  }
  auto blocker = OccupyEngine();
  std::vector<std::unique_ptr<TestRequest>> requests;
  for (int64_t k = 1; k <= 6; ++k) {
    auto request = Make(0, 5, {.seed = static_cast<uint32_t>(k), .given_k = k});
    MOE_ASSERT_OK(engine_->Submit(request->get()));
    requests.push_back(std::move(request));
  }
  blocker->LetGo();
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    MOE_EXPECT_OK(requests[i]->Wait());
    EXPECT_EQ(requests[i]->response().ids.size(), 5 * (i + 1));
    ExpectSame(requests[i]->response(), alone[i]);
  }
  MOE_EXPECT_OK(blocker->Wait());
}

TEST_F(EngineTest, RouteOnlyGivesLogitsAndNoOutput) {
  StartEngine();
  TestRequest request(
      Layer(0), 3,
      {.parts = {ResponsePart::kExpertIds, ResponsePart::kRouterLogits}});
  const Response response = Alone(request);
  EXPECT_TRUE(response.output.empty());
  EXPECT_EQ(response.ids.size(), 3 * 4U);
  EXPECT_EQ(response.logits.size(), 3 * 16U);
  EXPECT_EQ(Metric("moe_expert_tokens_total"), 0) << "no expert has run";
}

TEST_F(EngineTest, CountsTokensOfExperts) {
  StartEngine();
  auto request = Make(0, 7);
  Alone(*request);
  EXPECT_EQ(Metric("moe_expert_tokens_total"), 7 * 4);
  EXPECT_EQ(Metric("moe_tokens_total"), 7);
  EXPECT_EQ(Metric("moe_layer_tokens_total"), 7);
  // Layer 0 of the demo model: three matrices of 256 x 128 in float32.
  EXPECT_EQ(Metric("moe_expert_flops_total"), 7.0 * 4 * 2 * 3 * 256 * 128);
  EXPECT_EQ(static_cast<int64_t>(Metric("moe_expert_read_bytes_total")) %
                (4 * 3 * 256 * 128),
            0);
}

TEST_F(EngineTest, BytesAreInTheQueueUntilReleased) {
  StartEngine();
  auto request = Make(0, 1, {.bytes = 1000});
  Alone(*request);
  EXPECT_EQ(Metric("moe_queue_bytes"), 1000);
  engine_->Release(1000);
  EXPECT_EQ(Metric("moe_queue_bytes"), 0);
}

TEST_F(EngineTest, AnswersRequestsWithoutTokens) {
  StartEngine();
  for (size_t layer = 0; layer < 3; ++layer) {
    auto request = Make(layer, 0);
    const Response response = Alone(*request);
    EXPECT_EQ(request->parts(), 1);
    EXPECT_TRUE(response.output.empty());
  }
}

TEST_F(EngineTest, FullQueueRefusesAtOnceAndSaysWhenToRetry) {
  StartEngine({.batching = {.max_queue_tokens = 4}});
  auto blocker = OccupyEngine();
  auto waiting = Make(0, 3);
  auto refused = Make(0, 2);
  MOE_ASSERT_OK(engine_->Submit(waiting->get()));
  EXPECT_THAT(engine_->Submit(refused->get()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("3 tokens waiting of 4")));
  EXPECT_GE(engine_->RetryAfter(), std::chrono::milliseconds(1));
  EXPECT_EQ(Metric("moe_rejected_requests_total", "queue_full"), 1);
  blocker->LetGo();
  MOE_EXPECT_OK(waiting->Wait());
  MOE_EXPECT_OK(blocker->Wait());
  auto later = Make(0, 2);
  Alone(*later);
}

TEST_F(EngineTest, BoundsBytesUntilTheyAreReleased) {
  StartEngine({.max_queue_bytes = 1000});
  auto first = Make(0, 1, {.bytes = 900});
  Alone(*first);
  auto second = Make(0, 1, {.bytes = 200});
  EXPECT_THAT(
      engine_->Submit(second->get()),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("900 bytes")));
  engine_->Release(900);
  Alone(*second);
}

TEST_F(EngineTest, RequestThatIsTooLateIsNotAdmitted) {
  StartEngine({.clock = &clock_});
  auto expired = Make(0, 1, {.deadline = clock_.Now()});
  EXPECT_THAT(engine_->Submit(expired->get()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
  auto cancelled = Make(0, 1);
  cancelled->Cancel();
  EXPECT_THAT(engine_->Submit(cancelled->get()),
              StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_EQ(Metric("moe_rejected_requests_total", "expired"), 1);
  EXPECT_EQ(Metric("moe_rejected_requests_total", "cancelled"), 1);
  EXPECT_EQ(Metric("moe_batch_tokens"), 0);
}

TEST_F(EngineTest, RequestThatLosesItsCallerInTheQueueIsNotComputed) {
  StartEngine();
  auto blocker = OccupyEngine();
  auto cancelled = Make(0, 5);
  MOE_ASSERT_OK(engine_->Submit(cancelled->get()));
  cancelled->Cancel();
  blocker->LetGo();
  EXPECT_THAT(cancelled->Wait(), StatusIs(absl::StatusCode::kCancelled, _));
  MOE_EXPECT_OK(blocker->Wait());
  EXPECT_EQ(cancelled->parts(), 0);
  EXPECT_EQ(Metric("moe_tokens_total"), 1) << "the blocker's";
  EXPECT_EQ(Metric("moe_rejected_requests_total", "cancelled"), 1);
}

TEST_F(EngineTest, ExpiredRequestIsNotComputed) {
  StartEngine({.clock = &clock_});
  auto blocker = OccupyEngine();
  auto expired =
      Make(0, 5, {.deadline = clock_.Now() + std::chrono::seconds(1)});
  MOE_ASSERT_OK(engine_->Submit(expired->get()));
  clock_.Advance(std::chrono::seconds(1));
  blocker->LetGo();
  EXPECT_THAT(expired->Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, _));
  MOE_EXPECT_OK(blocker->Wait());
  EXPECT_EQ(expired->parts(), 0);
  EXPECT_EQ(Metric("moe_tokens_total"), 1) << "the blocker's";
  EXPECT_EQ(Metric("moe_rejected_requests_total", "expired"), 1);
}

TEST_F(EngineTest, CallerThatLeavesDuringComputeGetsNoEncoding) {
  StartEngine();
  auto blocker = OccupyEngine();
  blocker->Cancel();
  blocker->LetGo();
  EXPECT_THAT(blocker->Wait(), StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_EQ(blocker->parts(), 0);
  EXPECT_EQ(Metric("moe_rejected_requests_total", "cancelled"), 1);
}

TEST_F(EngineTest, CancelledRestOfALargeRequestEndsOnce) {
  StartEngine({.batching = {.max_batch_tokens = 2}});
  auto large = Make(0, 9);
  large->HoldEngine();
  MOE_ASSERT_OK(engine_->Submit(large->get()));
  large->WaitUntilRunning();
  large->Cancel();
  large->LetGo();
  EXPECT_THAT(large->Wait(), StatusIs(absl::StatusCode::kCancelled, _));
  EXPECT_EQ(large->parts(), 0);
  EXPECT_EQ(Metric("moe_rejected_requests_total", "cancelled"), 1);
}

TEST_F(EngineTest, DrainRefusesNewWorkAndFinishesTheOld) {
  StartEngine();
  auto blocker = OccupyEngine();
  auto waiting = Make(0, 1);
  MOE_ASSERT_OK(engine_->Submit(waiting->get()));
  engine_->BeginDrain();
  auto late = Make(0, 1);
  EXPECT_THAT(engine_->Submit(late->get()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  EXPECT_EQ(Metric("moe_rejected_requests_total", "draining"), 1);
  blocker->LetGo();
  MOE_EXPECT_OK(waiting->Wait());
  MOE_EXPECT_OK(blocker->Wait());
}

TEST_F(EngineTest, DestructionFinishesWhatWasAdmitted) {
  // A delay that only the end of the engine cuts short.
  StartEngine({.batching = {.max_queue_delay = std::chrono::hours(1)}});
  auto blocker = OccupyEngine();
  auto waiting = Make(0, 1);
  MOE_ASSERT_OK(engine_->Submit(waiting->get()));
  blocker->LetGo();
  engine_.reset();
  MOE_EXPECT_OK(waiting->Wait());
  MOE_EXPECT_OK(blocker->Wait());
}

TEST_F(EngineTest, RowWithNanLeavesItsBatchMatesAlone) {
  StartEngine();
  auto alone = Make(0, 2, {.seed = 7});
  const Response want = Alone(*alone);
  auto blocker = OccupyEngine();
  auto good = Make(0, 2, {.seed = 7});
  auto bad = Make(0, 2, {.seed = 8});
  bad->SpoilFirstValue(std::numeric_limits<float>::quiet_NaN());
  MOE_ASSERT_OK(engine_->Submit(bad->get()));
  MOE_ASSERT_OK(engine_->Submit(good->get()));
  blocker->LetGo();
  MOE_EXPECT_OK(good->Wait());
  MOE_EXPECT_OK(bad->Wait());
  MOE_EXPECT_OK(blocker->Wait());
  ExpectSame(good->response(), want);
  EXPECT_TRUE(std::isnan(bad->response().output.front()));
  EXPECT_FALSE(std::isnan(bad->response().output.back()));
  EXPECT_EQ(Metric("moe_nonfinite_rows_total"), 1);
}

// Experts that double their input, and wait for a word first, as those of a
// front do: each batch for that of the first value of its first row.
class DistantExperts final : public ExpertShard {
 public:
  static constexpr int64_t kWidth = 4;

  const ExpertSpec& spec() const override { return spec_; }
  int64_t num_experts() const override { return 1; }

  absl::Status Forward(const ExpertBatch& batch, ExpertWorkspace& workspace,
                       Matrix out, ExpertFailures& failures) const override {
    failures.Clear();
    absl::Status status;
    {
      const AwayFromCompute away(workspace.turn());
      absl::MutexLock lock(&mutex_);
      const float name = *batch.hidden_states.Row(0);
      waiting_.insert(name);
      const auto told = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return words_.count(name) > 0;
      };
      mutex_.Await(absl::Condition(&told));
      waiting_.erase(name);
      status = words_.at(name);
    }
    EXPECT_EQ(computing_.fetch_add(1), 0) << "one computes at a time";
    for (int64_t r = 0; r < out.rows(); ++r) {
      for (int64_t c = 0; c < kWidth; ++c) {
        out.Row(r)[c] = 2 * batch.hidden_states.Row(r)[c];
      }
    }
    computing_.fetch_sub(1);
    return status;
  }

  void WaitUntilWaiting(float name) const {
    absl::MutexLock lock(&mutex_);
    const auto waits = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return waiting_.count(name) > 0;
    };
    mutex_.Await(absl::Condition(&waits));
  }
  void Tell(float name, absl::Status status = absl::OkStatus()) const {
    absl::MutexLock lock(&mutex_);
    words_.emplace(name, std::move(status));
  }

 private:
  const ExpertSpec spec_{.d_model = kWidth, .d_ff = 1, .activation = {}};
  mutable std::atomic<int> computing_ = 0;
  mutable absl::Mutex mutex_;
  mutable std::set<float> waiting_ ABSL_GUARDED_BY(mutex_);
  mutable std::map<float, absl::Status> words_ ABSL_GUARDED_BY(mutex_);
};

class BatchesInFlightTest : public EngineTest {
 protected:
  BatchesInFlightTest() {
    auto experts = std::make_unique<DistantExperts>();
    experts_ = experts.get();
    FfnLayerParts parts;
    parts.experts = std::move(experts);
    ffn_ = std::make_unique<FfnLayer>(std::move(parts));
    distant_.ffn = std::move(ffn_);
  }
  ~BatchesInFlightTest() override { engine_.reset(); }

  // Rows first, first + 1, ... of which each value is its number.
  std::unique_ptr<TestRequest> Numbered(int64_t tokens, float first) const {
    auto request = std::make_unique<TestRequest>(
        ServedLayer{.served = nullptr, .layer = &distant_}, tokens);
    std::vector<float> rows;
    for (int64_t t = 0; t < tokens; ++t) {
      rows.insert(rows.end(), DistantExperts::kWidth,
                  first + static_cast<float>(t));
    }
    request->SetRows(std::move(rows));
    return request;
  }
  static std::vector<float> Doubled(int64_t tokens, float first) {
    std::vector<float> rows;
    for (int64_t t = 0; t < tokens; ++t) {
      rows.insert(rows.end(), DistantExperts::kWidth,
                  2 * (first + static_cast<float>(t)));
    }
    return rows;
  }

  const DistantExperts* experts_ = nullptr;
  std::unique_ptr<FfnLayer> ffn_;
  ModelLayer distant_;
};

TEST_F(BatchesInFlightTest, OthersRunWhileABatchWaits) {
  StartEngine({.batches_in_flight = 2});
  auto waits = Numbered(1, 10);
  MOE_ASSERT_OK(engine_->Submit(waits->get()));
  experts_->WaitUntilWaiting(10);
  auto passes = Make(0, 3);
  MOE_ASSERT_OK(engine_->Submit(passes->get()));
  MOE_EXPECT_OK(passes->Wait());
  experts_->Tell(10);
  MOE_EXPECT_OK(waits->Wait());
  EXPECT_EQ(waits->response().output, Doubled(1, 10));
}

TEST_F(BatchesInFlightTest, NoMoreThanAllowed) {
  StartEngine({.batches_in_flight = 2});
  auto first = Numbered(1, 10);
  auto second = Numbered(1, 20);
  auto third = Numbered(1, 30);
  MOE_ASSERT_OK(engine_->Submit(first->get()));
  experts_->WaitUntilWaiting(10);
  MOE_ASSERT_OK(engine_->Submit(second->get()));
  experts_->WaitUntilWaiting(20);
  MOE_ASSERT_OK(engine_->Submit(third->get()));
  EXPECT_EQ(Metric("moe_queue_tokens"), 1);
  experts_->Tell(20);
  MOE_EXPECT_OK(second->Wait());
  experts_->WaitUntilWaiting(30);
  experts_->Tell(30);
  experts_->Tell(10);
  MOE_EXPECT_OK(third->Wait());
  MOE_EXPECT_OK(first->Wait());
}

TEST_F(BatchesInFlightTest, PartsOfARequestMayEndInAnyOrder) {
  StartEngine({.batching = {.max_batch_tokens = 4}, .batches_in_flight = 3});
  auto request = Numbered(10, 100);  // 100-103, 104-107, 108-109
  MOE_ASSERT_OK(engine_->Submit(request->get()));
  for (const float part : {100.0F, 104.0F, 108.0F}) {
    experts_->WaitUntilWaiting(part);
  }
  for (const float part : {108.0F, 100.0F, 104.0F}) experts_->Tell(part);
  MOE_ASSERT_OK(request->Wait());
  EXPECT_EQ(request->response().output, Doubled(10, 100));
  EXPECT_EQ(request->parts(), 3);
}

TEST_F(BatchesInFlightTest, ARequestEndsWithTheLastOfItsPartsIfOneFails) {
  StartEngine({.batching = {.max_batch_tokens = 4}, .batches_in_flight = 2});
  auto request = Numbered(12, 100);  // the last part waits in the queue
  MOE_ASSERT_OK(engine_->Submit(request->get()));
  experts_->WaitUntilWaiting(100);
  experts_->WaitUntilWaiting(104);
  experts_->Tell(104, absl::UnavailableError("no replica answers"));
  // The runner that is free drops what is in the queue.
  auto behind = Make(0, 1);
  MOE_ASSERT_OK(engine_->Submit(behind->get()));
  MOE_EXPECT_OK(behind->Wait());
  EXPECT_FALSE(request->finished());
  experts_->Tell(100);
  EXPECT_THAT(request->Wait(),
              StatusIs(absl::StatusCode::kUnavailable, "no replica answers"));
}

TEST_F(BatchesInFlightTest, TheEndWaitsForThem) {
  StartEngine({.batches_in_flight = 2});
  auto waits = Numbered(1, 10);
  MOE_ASSERT_OK(engine_->Submit(waits->get()));
  experts_->WaitUntilWaiting(10);
  std::thread end([this] { engine_.reset(); });
  experts_->Tell(10);
  end.join();
  MOE_EXPECT_OK(waits->Wait());
}

}  // namespace
}  // namespace moe
