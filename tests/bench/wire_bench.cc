// What moving tensors between messages and batches costs, without network and
// compute: microseconds of one core per megabyte of hidden states.
//
//   build/release/bin/wire_bench

#include <cstdint>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "grpcpp/support/byte_buffer.h"
#include "moe/v1/moe.pb.h"
#include "server/wire/tensor_codec.h"
#include "server/wire/wire_message.h"

namespace moe {
namespace {

constexpr int64_t kDModel = 2048;

v1::ForwardRequest Request(v1::DType dtype, int64_t bytes) {
  v1::ForwardRequest request;
  const int64_t rows = bytes / (kDModel * ElementBytes(dtype));
  std::vector<float> values(static_cast<size_t>(rows * kDModel), 0.5F);
  Encode(ConstMatrix(values.data(), rows, kDModel), dtype,
         *request.mutable_hidden_states());
  return request;
}

// A message in slices, as TCP delivers it.
grpc::ByteBuffer InSlices(const std::string& wire) {
  constexpr size_t kSlice = 65536;
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < wire.size(); at += kSlice) {
    slices.emplace_back(wire.substr(at, kSlice));
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Wire to batch: gRPC's slices to rows of floats.
void Receive(benchmark::State& state, v1::DType dtype) {
  const int64_t bytes = state.range(0);
  const v1::ForwardRequest sent = Request(dtype, bytes);
  const grpc::ByteBuffer wire = InSlices(sent.SerializeAsString());
  const int64_t rows = sent.hidden_states().shape(0);
  std::vector<float> batch(static_cast<size_t>(rows * kDModel));
  constexpr int kField = v1::ForwardRequest::kHiddenStatesFieldNumber;
  for (auto _ : state) {
    v1::ForwardRequest request;
    TensorData data;
    if (!data.Parse(wire, {kField, kField}, &request).ok()) {
      state.SkipWithError("parse");
      return;
    }
    const auto matrix =
        CheckHiddenStates(data.Tensor(kField, request.hidden_states()),
                          "hidden_states", kDModel, rows);
    Decode(*matrix, Matrix(batch.data(), rows, kDModel));
    benchmark::DoNotOptimize(batch.data());
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

// Batch to wire: rows of floats to the slice that gRPC sends.
void Send(benchmark::State& state, v1::DType dtype) {
  const int64_t bytes = state.range(0);
  const int64_t rows = bytes / (kDModel * ElementBytes(dtype));
  const std::vector<float> batch(static_cast<size_t>(rows * kDModel), 0.5F);
  const OutgoingMessage::TensorPlan plans[] = {
      {v1::ForwardResponse::kOutputFieldNumber, dtype, rows, kDModel}};
  for (auto _ : state) {
    OutgoingMessage response;
    response.Reserve("", plans, /*inside_field=*/0);
    EncodeRows(ConstMatrix(batch.data(), rows, kDModel), dtype,
               response.Row(0, 0));
    const grpc::ByteBuffer buffer = response.Take();
    benchmark::DoNotOptimize(buffer.Length());
  }
  state.SetBytesProcessed(state.iterations() * bytes);
}

BENCHMARK_CAPTURE(Receive, f32, v1::F32)
    ->RangeMultiplier(8)
    ->Range(1 << 20, 64 << 20);
BENCHMARK_CAPTURE(Receive, bf16, v1::BF16)
    ->RangeMultiplier(8)
    ->Range(1 << 20, 64 << 20);
BENCHMARK_CAPTURE(Send, f32, v1::F32)
    ->RangeMultiplier(8)
    ->Range(1 << 20, 64 << 20);
BENCHMARK_CAPTURE(Send, bf16, v1::BF16)
    ->RangeMultiplier(8)
    ->Range(1 << 20, 64 << 20);

}  // namespace
}  // namespace moe

BENCHMARK_MAIN();
