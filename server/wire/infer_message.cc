#include "server/wire/infer_message.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "server/wire/wire_fields.h"

namespace moe {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;
using Wire = google::protobuf::internal::WireFormatLite;
using Elements = inference::InferTensorContents;
using Request = inference::ModelInferRequest;

constexpr int kFloats = Elements::kFp32ContentsFieldNumber;
constexpr int kInts = Elements::kIntContentsFieldNumber;

constexpr uint32_t LengthDelimited(int field) {
  return Wire::MakeTag(field, Wire::WIRETYPE_LENGTH_DELIMITED);
}
constexpr uint32_t kInputTag = LengthDelimited(Request::kInputsFieldNumber);
constexpr uint32_t kRawTag =
    LengthDelimited(Request::kRawInputContentsFieldNumber);
constexpr uint32_t kContentsTag =
    LengthDelimited(Request::InferInputTensor::kContentsFieldNumber);

// Calls `parse` with the input limited to a field, all of which it must read.
template <typename Parse>
bool ReadField(CodedInputStream& input, Parse parse) {
  int length = 0;
  if (!ReadLength(input, &length)) return false;
  const auto limit = input.PushLimit(length);
  if (!parse() || input.BytesUntilLimit() != 0) return false;
  input.PopLimit(limit);
  return true;
}

void AppendWord(uint32_t word, std::string* to) {
  for (int byte = 0; byte < 4; ++byte) {
    to->push_back(static_cast<char>(word >> (8 * byte) & 0xFF));
  }
}

// One element of int_contents.
bool ReadInt(CodedInputStream& input, std::string* to) {
  uint64_t value = 0;
  if (!input.ReadVarint64(&value)) return false;
  AppendWord(static_cast<uint32_t>(value), to);
  return true;
}

// Whether elements of `field`, which is one of InferTensorContents, may come in
// this wire type. Others are unknown fields.
bool IsElement(int field, Wire::WireType type) {
  if (type == Wire::WIRETYPE_LENGTH_DELIMITED) return true;
  switch (field) {
    case Elements::kFp32ContentsFieldNumber:
      return type == Wire::WIRETYPE_FIXED32;
    case Elements::kFp64ContentsFieldNumber:
      return type == Wire::WIRETYPE_FIXED64;
    case Elements::kBytesContentsFieldNumber:
      return false;
    default:
      return type == Wire::WIRETYPE_VARINT;
  }
}

}  // namespace

absl::Status InferMessage::Parse(const grpc::ByteBuffer& bytes) {
  // The message without the data of its tensors.
  std::string rest;
  bool too_large = false;
  bool parsed = bytes_.Hold(bytes);
  if (parsed) {
    grpc::ByteBuffer copy(bytes);  // shares the slices
    grpc::ProtoBufferReader reader(&copy);
    parsed = reader.status().ok();
    if (parsed) {
      CodedInputStream input(&reader);
      input.PushLimit(static_cast<int>(bytes.Length()));
      parsed = ParseAll(input, &rest, &too_large);
    }
  }
  if (too_large) {
    return absl::InvalidArgumentError(
        absl::StrCat("request: want at most ", kMaxHeadBytes,
                     " bytes besides the data of tensors"));
  }
  if (!parsed || !head_.ParseFromString(rest)) {
    return absl::InvalidArgumentError(
        "request: want an inference.ModelInferRequest message");
  }
  return absl::OkStatus();
}

bool InferMessage::ParseAll(Input& input, std::string* rest, bool* too_large) {
  StringOutputStream stream(rest);
  CodedOutputStream output(&stream);
  std::string head;
  while (const uint32_t tag = ReadTag(input)) {
    if (tag == kRawTag) {
      int length = 0;
      if (!ReadLength(input, &length)) return false;
      if (num_raw_++ < kMaxRaw) {
        raw_.push_back(
            {.bytes = bytes_.From(static_cast<size_t>(input.CurrentPosition())),
             .size = static_cast<size_t>(length)});
      }
      if (!input.Skip(length)) return false;
    } else if (tag == kInputTag) {
      head.clear();
      if (!ReadField(input, [&] { return ParseInput(input, &head); })) {
        return false;
      }
      output.WriteTag(tag);
      output.WriteVarint32(static_cast<uint32_t>(head.size()));
      output.WriteString(head);
    } else if (!SkipField(input, tag, &output)) {
      return false;
    }
    // Also bounds what protobuf makes of it: many times its bytes.
    *too_large = output.ByteCount() > kMaxHeadBytes;
    if (*too_large) return false;
  }
  return input.ConsumedEntireMessage();
}

// Copies an input up to the limit, but for its contents.
bool InferMessage::ParseInput(Input& input, std::string* head) {
  Contents& contents = contents_.emplace_back();
  StringOutputStream stream(head);
  CodedOutputStream output(&stream);
  while (const uint32_t tag = ReadTag(input)) {
    const bool ok =
        tag == kContentsTag
            ? ReadField(input, [&] { return ParseContents(input, &contents); })
            : SkipField(input, tag, &output);
    if (!ok) return false;
  }
  return input.ConsumedEntireMessage();
}

bool InferMessage::ParseContents(Input& input, Contents* contents) {
  while (const uint32_t tag = ReadTag(input)) {
    const int field = Wire::GetTagFieldNumber(tag);
    const Wire::WireType type = Wire::GetTagWireType(tag);
    const bool packed = type == Wire::WIRETYPE_LENGTH_DELIMITED;
    if (field > Elements::kBytesContentsFieldNumber ||
        !IsElement(field, type)) {
      if (!SkipField(input, tag, nullptr)) return false;
      continue;
    }
    const int before = input.CurrentPosition();
    bool ok = false;
    if (field == kFloats && packed) {
      ok = ParseFloats(input, contents);
    } else if (field == kFloats) {
      uint32_t word = 0;
      ok = input.ReadLittleEndian32(&word);
      if (contents->in_place_.has_value()) MoveFloats(contents);
      AppendWord(word, &contents->floats_);
    } else if (field == kInts && packed) {
      ok = ReadField(input, [&] {
        while (input.BytesUntilLimit() > 0) {
          if (!ReadInt(input, &contents->ints_)) return false;
        }
        return true;
      });
    } else if (field == kInts) {
      ok = ReadInt(input, &contents->ints_);
    } else {
      ok = SkipField(input, tag, nullptr);
    }
    if (!ok) return false;
    // A packed field may be empty: one byte, its length.
    if (!packed || field == Elements::kBytesContentsFieldNumber ||
        input.CurrentPosition() - before > 1) {
      contents->fields_ |= 1U << field;
    }
  }
  return input.ConsumedEntireMessage();
}

bool InferMessage::ParseFloats(Input& input, Contents* contents) {
  int length = 0;
  if (!ReadLength(input, &length) || length % 4 != 0) return false;
  if (length == 0) return true;
  const Data data = {
      .bytes = bytes_.From(static_cast<size_t>(input.CurrentPosition())),
      .size = static_cast<size_t>(length)};
  if (contents->floats_.empty() && !contents->in_place_.has_value()) {
    contents->in_place_ = data;
  } else {
    if (contents->in_place_.has_value()) MoveFloats(contents);
    const size_t size = contents->floats_.size();
    contents->floats_.resize(size + data.size);
    data.bytes.CopyTo(contents->floats_.data() + size, data.size);
  }
  return input.Skip(length);
}

// More elements follow elsewhere: from here on they are collected.
void InferMessage::MoveFloats(Contents* contents) {
  contents->floats_.resize(contents->in_place_->size);
  contents->in_place_->bytes.CopyTo(contents->floats_.data(),
                                    contents->floats_.size());
  contents->in_place_.reset();
}

InferMessage::Data InferMessage::FloatsOf(int i) const {
  const Contents& contents = ContentsOf(i);
  if (contents.in_place_.has_value()) return *contents.in_place_;
  return {.bytes = WireBytes(contents.floats_.data()),
          .size = contents.floats_.size()};
}

InferMessage::Data InferMessage::IntsOf(int i) const {
  const std::string& ints = ContentsOf(i).ints_;
  return {.bytes = WireBytes(ints.data()), .size = ints.size()};
}

}  // namespace moe
