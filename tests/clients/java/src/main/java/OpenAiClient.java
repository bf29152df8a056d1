import com.openai.client.OpenAIClient;
import com.openai.client.okhttp.OpenAIOkHttpClient;
import com.openai.core.JsonValue;
import com.openai.errors.BadRequestException;
import com.openai.errors.NotFoundException;
import com.openai.errors.UnauthorizedException;
import com.openai.helpers.ChatCompletionAccumulator;
import com.openai.models.ReasoningEffort;
import com.openai.models.chat.completions.ChatCompletion;
import com.openai.models.chat.completions.ChatCompletionCreateParams;
import com.openai.models.chat.completions.ChatCompletionStreamOptions;
import com.openai.models.completions.CompletionCreateParams;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * openai-java: the official library for Java and Kotlin.
 *
 * <p>It runs the replays and prints one line of JSON for each: java OpenAiClient BASE_URL API_KEY [REPLAY ...]
 */
public final class OpenAiClient {
  private static final String MODEL = "demo";
  private static final String QUESTION = "What is a pod?";

  private interface Replay {
    void run() throws Exception;
  }

  private final OpenAIClient client;
  private final OpenAIClient stranger;

  private OpenAiClient(String baseUrl, String key) {
    client = OpenAIOkHttpClient.builder().baseUrl(baseUrl).apiKey(key).maxRetries(0).build();
    stranger = OpenAIOkHttpClient.builder().baseUrl(baseUrl).apiKey("wrong").maxRetries(0).build();
  }

  public static void main(String[] args) {
    OpenAiClient program = new OpenAiClient(args[0], args[1]);
    List<String> names = List.of(args).subList(2, args.length);
    Map<String, Replay> replays = new LinkedHashMap<>();
    replays.put("chat", program::chat);
    replays.put("stream", program::stream);
    replays.put("secondTurn", program::secondTurn);
    replays.put("completion", program::completion);
    replays.put("asynchronous", program::asynchronous);
    replays.put("errors", program::errors);
    replays.forEach((name, replay) -> {
      if (names.isEmpty() || names.contains(name)) {
        System.out.println("{\"replay\": \"" + name + "\", \"error\": " + errorOf(replay) + "}");
      }
    });
    System.exit(0); // the library's threads would keep the process for a minute
  }

  private static String errorOf(Replay replay) {
    try {
      replay.run();
      return "null";
    } catch (Exception | AssertionError error) {
      String text = error + " at " + error.getStackTrace()[0];
      return "\"" + text.replaceAll("[\"\\\\\\p{Cntrl}]", " ") + "\"";
    }
  }

  private static ChatCompletionCreateParams.Builder asked() {
    return ChatCompletionCreateParams.builder()
        .model(MODEL)
        .maxCompletionTokens(30)
        .addDeveloperMessage("Answer in one sentence.")
        .addUserMessage(QUESTION);
  }

  private void chat() {
    ChatCompletion answer = client.chat().completions().create(asked()
        .temperature(0.5)
        .reasoningEffort(ReasoningEffort.LOW)
        .store(false)
        .serviceTier(ChatCompletionCreateParams.ServiceTier.AUTO)
        .putAdditionalBodyProperty("top_k", JsonValue.from(20))
        .build());
    check(!answer.choices().get(0).message().content().orElse("").isEmpty(), "no text");
    check(answer.usage().orElseThrow().totalTokens() > 0, "no usage");
    answer.validate();
  }

  private void stream() {
    ChatCompletionAccumulator whole = ChatCompletionAccumulator.create();
    ChatCompletionStreamOptions usage = ChatCompletionStreamOptions.builder().includeUsage(true).build();
    try (var chunks = client.chat().completions().createStreaming(asked().streamOptions(usage).build())) {
      chunks.stream().peek(whole::accumulate).forEach(chunk -> chunk.validate());
    }
    check(!whole.chatCompletion().choices().get(0).message().content().orElse("").isEmpty(), "no text");
    check(whole.chatCompletion().usage().orElseThrow().completionTokens() > 0, "no usage");
  }

  private void secondTurn() {
    ChatCompletionCreateParams.Builder history = asked();
    for (String next : List.of("And a node?", "And a service?")) {
      ChatCompletion answer = client.chat().completions().create(history.build());
      history.addMessage(answer.choices().get(0).message()).addUserMessage(next);
    }
    check(history.build().messages().size() == 6, "not all messages");
  }

  private void completion() {
    var params = CompletionCreateParams.builder().model(MODEL).prompt("A pod is").maxTokens(10).build();
    check(!client.completions().create(params).choices().get(0).text().isEmpty(), "no text");
  }

  private void asynchronous() throws Exception {
    ChatCompletion answer = client.async().chat().completions().create(asked().build()).get();
    check(answer.choices().size() == 1, "not one choice");
  }

  private void errors() {
    try {
      client.chat().completions().create(asked().model("gpt-4o").build());
      throw new AssertionError("an unknown model was accepted");
    } catch (NotFoundException error) {
      check(error.code().orElse("").equals("model_not_found"), "code " + error.code());
    }
    try {
      client.chat().completions().create(asked().addUserMessage("pod ".repeat(4096)).build());
      throw new AssertionError("a prompt that is too long was accepted");
    } catch (BadRequestException error) {
      check(error.code().orElse("").equals("context_length_exceeded"), "code " + error.code());
    }
    try {
      stranger.models().list();
      throw new AssertionError("a wrong key was accepted");
    } catch (UnauthorizedException error) {
      check(error.code().orElse("").equals("invalid_api_key"), "code " + error.code());
    }
  }

  private static void check(boolean holds, String message) {
    if (!holds) {
      throw new AssertionError(message);
    }
  }
}
