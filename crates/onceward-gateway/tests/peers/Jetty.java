// The API of asgi.py on Jetty. Answers are flushed before their end, so Jetty does not know their length: it sends chunks, or ends
// the answer with the connection where the request has `Connection: close`, or while it shuts down.

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.eclipse.jetty.server.Request;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.server.handler.AbstractHandler;
import org.eclipse.jetty.server.handler.StatisticsHandler;

public class Jetty extends AbstractHandler {
  private static final Path FOLDER = Path.of(System.getenv("PEER_FOLDER"));

  @Override
  public void handle(String target, Request base, HttpServletRequest request, HttpServletResponse response)
      throws IOException {
    request.getInputStream().readAllBytes();
    switch (request.getMethod() + " " + target) {
      case "POST /charges" -> charge(request, response);
      case "POST /crash" -> throw new IllegalStateException("this handler always fails");
      case "POST /crash-later" -> {
        answer(response, 202, "text/plain", "one part, ");
        throw new IllegalStateException("this answer always breaks off");
      }
      case "GET /hello" -> answer(response, 200, "text/plain", "hello world");
      default -> response.setStatus(404);
    }
    base.setHandled(true);
  }

  private static void charge(HttpServletRequest request, HttpServletResponse response) throws IOException {
    String key = request.getHeader("idempotency-key");
    Files.writeString(
        FOLDER.resolve("ledger.txt"), key + "\n", StandardOpenOption.CREATE, StandardOpenOption.APPEND);
    if (request.getHeader("x-wait-for") == null) {
      answer(response, 201, "text/plain", "charged " + key);
      return;
    }
    waitFor(FOLDER.resolve(request.getHeader("x-wait-for")));
    // Jetty shuts down meanwhile, so the answer counts only because its JSON proves that it is complete.
    answer(response, 201, "application/json", "{\"charged\":true}");
  }

  /** Blocks until the test has created the file, for 30 seconds at most. */
  private static void waitFor(Path file) throws IOException {
    try {
      for (int tries = 0; tries < 3000 && !Files.exists(file); tries++) {
        Thread.sleep(10);
      }
    } catch (InterruptedException error) {
      throw new IOException(error);
    }
  }

  private static void answer(HttpServletResponse response, int status, String type, String text)
      throws IOException {
    response.setStatus(status);
    response.setContentType(type);
    response.getWriter().print(text);
    response.flushBuffer();
  }

  public static void main(String[] arguments) throws Exception {
    Server server = new Server();
    ServerConnector connector = new ServerConnector(server);
    connector.setHost("127.0.0.1");
    connector.setPort(Integer.parseInt(arguments[0]));
    connector.setIdleTimeout(Long.parseLong(arguments[1]) * 1000);
    server.addConnector(connector);
    // Without it Jetty breaks off the requests that it has begun when it is asked to end.
    StatisticsHandler counting = new StatisticsHandler();
    counting.setHandler(new Jetty());
    server.setHandler(counting);
    server.setStopTimeout(10_000);
    server.setStopAtShutdown(true);
    server.start();
    System.out.println("listening");
    server.join();
  }
}
