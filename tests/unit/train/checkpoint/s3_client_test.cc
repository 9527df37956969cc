#include "train/checkpoint/s3_client.h"

#include "tests/unit/train/checkpoint/support.h"
#include "train/checkpoint/sha256.h"

namespace argosy::train {
namespace {

TEST_CASE("Sha256: the standards' examples") {
  CHECK(Hex(Sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(Hex(Sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Hex(Sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(Hex(Sha256(std::string(1'000'000, 'a'))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(Hex(HmacSha256("Jefe", "what do ya want for nothing?")) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(Hex(HmacSha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST_CASE("S3: signatures are those of Amazon's documented examples") {
  const S3Credentials credentials{.access_key = "AKIAIOSFODNN7EXAMPLE", .secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  const absl::Time then = absl::FromCivil(absl::CivilSecond(2013, 5, 24), absl::UTCTimeZone());
  const std::string empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", host = "examplebucket.s3.amazonaws.com";
  auto signature = [&](const S3Request& request, std::string_view path, std::string_view hash) {
    auto headers = SignS3(request, host, path, "us-east-1", credentials, then, hash);
    return headers["authorization"].substr(headers["authorization"].rfind('=') + 1);
  };
  CHECK(signature({.headers = {{"range", "bytes=0-9"}}}, "/test.txt", empty) == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  CHECK(signature({.method = "PUT", .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"}, {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                  "/test$file.text", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072") ==
        "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
  CHECK(signature({.query = {{"lifecycle", ""}}}, "/", empty) == "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
  CHECK(signature({.query = {{"prefix", "J"}, {"max-keys", "2"}}}, "/", empty) == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST_CASE("S3: addresses, and texts of XML") {
  S3Location place = ParseS3Url("s3://my-bucket/runs/7b/").value();
  CHECK(place.bucket == "my-bucket");
  CHECK(place.Key("epoch-1/x") == "runs/7b/epoch-1/x");
  CHECK(place.Url("epoch-1") == "s3://my-bucket/runs/7b/epoch-1");
  CHECK(ParseS3Url("s3://only").value().Key("a") == "a");
  for (const char* wrong : {"/folder", "s3://", "s3:///x", "s3://Upper/x", "S3://b/x"}) {
    INFO(wrong);
    CHECK(Contains(Message(ParseS3Url(wrong).status()), wrong));
  }
  const std::string xml = "<R><Key>a &amp;lt; b</Key><Other/><Key>c</Key><Key></Key></R>";
  CHECK(XmlTexts(xml, "Key") == std::vector<std::string>{"a &lt; b", "c", ""});
  CHECK(XmlText(xml, "None").empty());
  CHECK(XmlEscaped("\"a<b>&") == "\"a&lt;b&gt;&amp;");
}

}  // namespace
}  // namespace argosy::train
