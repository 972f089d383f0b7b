#include "server/standard/reflection_service.h"

#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "server/rpc/small_call.h"
#include "server/wire/grpc_status.h"
#include "server/wire/small_message.h"

namespace moe {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1alpha::ServerReflectionRequest;
using grpc::reflection::v1alpha::ServerReflectionResponse;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// Adds a file and, before it, what it imports, each once.
void AddFile(const FileDescriptor& file, std::set<const FileDescriptor*>* seen,
             ServerReflectionResponse* response) {
  if (!seen->insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  response->mutable_file_descriptor_response()->add_file_descriptor_proto(
      proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) {
    AddFile(*file.dependency(i), seen, response);
  }
}

absl::Status DescribeFile(const FileDescriptor* file, absl::string_view what,
                          ServerReflectionResponse* response) {
  if (file == nullptr) return absl::NotFoundError(absl::StrCat("no ", what));
  std::set<const FileDescriptor*> seen;
  AddFile(*file, &seen, response);
  return absl::OkStatus();
}

const FieldDescriptor* FindExtension(const std::string& type, int number) {
  const Descriptor* const found = Pool().FindMessageTypeByName(type);
  return found == nullptr ? nullptr
                          : Pool().FindExtensionByNumber(found, number);
}

absl::Status DescribeExtensions(const std::string& type,
                                ServerReflectionResponse* response) {
  const Descriptor* const found = Pool().FindMessageTypeByName(type);
  if (found == nullptr) return absl::NotFoundError("no such type");
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(found, &extensions);
  auto& answer = *response->mutable_all_extension_numbers_response();
  answer.set_base_type_name(type);
  for (const FieldDescriptor* extension : extensions) {
    answer.add_extension_number(extension->number());
  }
  return absl::OkStatus();
}

absl::Status Describe(const ServerReflectionRequest& request,
                      const std::vector<std::string>& services,
                      ServerReflectionResponse* response) {
  switch (request.message_request_case()) {
    case ServerReflectionRequest::kFileByFilename:
      return DescribeFile(Pool().FindFileByName(request.file_by_filename()),
                          "such file", response);
    case ServerReflectionRequest::kFileContainingSymbol:
      return DescribeFile(
          Pool().FindFileContainingSymbol(request.file_containing_symbol()),
          "such symbol", response);
    case ServerReflectionRequest::kFileContainingExtension: {
      const auto& asked = request.file_containing_extension();
      const FieldDescriptor* const extension =
          FindExtension(asked.containing_type(), asked.extension_number());
      return DescribeFile(extension == nullptr ? nullptr : extension->file(),
                          "such extension", response);
    }
    case ServerReflectionRequest::kAllExtensionNumbersOfType:
      return DescribeExtensions(request.all_extension_numbers_of_type(),
                                response);
    case ServerReflectionRequest::kListServices:
      for (const std::string& name : services) {
        response->mutable_list_services_response()->add_service()->set_name(
            name);
      }
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("message_request: want one, got none");
  }
}

// Answers one request after the other; deletes itself.
class ReflectionStream final
    : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit ReflectionStream(const std::vector<std::string>& names)
      : names_(names) {}

  void Start(const absl::Status& access) {
    if (!access.ok()) return Finish(ToGrpcStatus(access));
    StartRead(&message_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    ServerReflectionRequest request;
    const absl::Status parsed = ParseSmall(message_, &request);
    message_.Clear();
    if (!parsed.ok()) return Finish(ToGrpcStatus(parsed));
    message_ = Serialize(Reflect(request, names_));
    StartWrite(&message_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    message_.Clear();
    StartRead(&message_);
  }
  void OnDone() override { const std::unique_ptr<ReflectionStream> self(this); }

 private:
  const std::vector<std::string>& names_;
  grpc::ByteBuffer message_;  // that is read, or written
};

}  // namespace

ServerReflectionResponse Reflect(const ServerReflectionRequest& request,
                                 const std::vector<std::string>& services) {
  ServerReflectionResponse response;
  response.set_valid_host(request.host());
  *response.mutable_original_request() = request;
  const absl::Status status = Describe(request, services, &response);
  if (!status.ok()) {
    const grpc::Status shown = ToGrpcStatus(status);
    response.mutable_error_response()->set_error_code(shown.error_code());
    response.mutable_error_response()->set_error_message(shown.error_message());
  }
  return response;
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
ReflectionService::ServerReflectionInfo(grpc::CallbackServerContext* context) {
  auto* const stream = std::make_unique<ReflectionStream>(names_)
                           .release();  // owns itself until OnDone
  stream->Start(services_.access().Authorize(*context));
  return stream;
}

}  // namespace moe
