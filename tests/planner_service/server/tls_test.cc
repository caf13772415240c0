// TLS over a real socket: clients with a certificate of the right authority, and all others.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "planner_service/server/planner_server.h"
#include "relibra/v1/planner.grpc.pb.h"

namespace relibra::server {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v openssl > /dev/null") != 0) GTEST_SKIP() << "no openssl here";
    folder_ = testing::TempDir() + "relibra_tls_XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    MakeAuthority("ca");
    MakeAuthority("stranger-ca");
    MakeCertificate("server", "ca");
    MakeCertificate("client", "ca");
    MakeCertificate("stranger", "stranger-ca");
    options_.listen = "127.0.0.1:0";
    options_.metrics_address = "";
    options_.tls_cert = Path("server.crt");
    options_.tls_key = Path("server.key");
    options_.tls_client_ca = Path("ca.crt");
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  void Run(const std::string& command) {
    ASSERT_EQ(std::system(absl::StrCat("cd ", folder_, " && ", command, " 2> /dev/null").c_str()),
              0)
        << command;
  }

  void MakeAuthority(const std::string& name) {
    Run(
        absl::StrCat("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "
                     "-days 2 -subj /CN=",
                     name, " -keyout ", name, ".key -out ", name, ".crt"));
  }

  void MakeCertificate(const std::string& name, const std::string& authority) {
    std::ofstream(Path("san")) << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
    Run(
        absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "
                     "/CN=",
                     name, " -keyout ", name, ".key -out ", name, ".csr && openssl x509 -req -in ",
                     name, ".csr -CA ", authority, ".crt -CAkey ", authority,
                     ".key -CAcreateserial -days 2 -extfile san -out ", name, ".crt"));
  }

  // Asks for the status with these credentials.
  static grpc::Status Ask(int port, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    auto stub =
        v1::Planner::NewStub(grpc::CreateChannel(absl::StrCat("localhost:", port), credentials));
    grpc::ClientContext call;
    call.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::GetStatusResponse response;
    return stub->GetStatus(&call, {}, &response);
  }

  std::shared_ptr<grpc::ChannelCredentials> ClientNamed(const std::string& name) const {
    return grpc::SslCredentials({.pem_root_certs = ReadFile(Path("ca.crt")),
                                 .pem_private_key = ReadFile(Path(name + ".key")),
                                 .pem_cert_chain = ReadFile(Path(name + ".crt"))});
  }

  std::string folder_;
  ServerOptions options_;
};

TEST_F(TlsTest, ServesOnlyClientsOfItsAuthority) {
  const auto server = PlannerServer::Start(options_);
  ASSERT_TRUE(server.ok()) << server.status();
  const int port = (*server)->port();
  const grpc::Status known = Ask(port, ClientNamed("client"));
  EXPECT_TRUE(known.ok()) << known.error_message();
  EXPECT_FALSE(Ask(port, ClientNamed("stranger")).ok());
  EXPECT_FALSE(Ask(port, grpc::SslCredentials({.pem_root_certs = ReadFile(Path("ca.crt")),
                                               .pem_private_key = "",
                                               .pem_cert_chain = ""}))
                   .ok());
  EXPECT_FALSE(Ask(port, grpc::InsecureChannelCredentials()).ok());
}

TEST_F(TlsTest, AllowsAddressesThatAreNotLoopback) {
  options_.listen = "0.0.0.0:0";
  EXPECT_TRUE(PlannerServer::Start(options_).ok());
  options_.metrics_address = "0.0.0.0:0";  // that is not encrypted
  const auto refused = PlannerServer::Start(options_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--metrics-address"));
}

TEST_F(TlsTest, NeedsAllThreeFiles) {
  options_.tls_client_ca = "";
  auto refused = PlannerServer::Start(options_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--tls-client-ca: expected"));
  options_.tls_client_ca = Path("nothing-here");
  refused = PlannerServer::Start(options_);
  EXPECT_TRUE(absl::IsInvalidArgument(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--tls-client-ca: cannot read"));
}

}  // namespace
}  // namespace relibra::server
