-- The bounds on time tell Spark when a row can find no partner any more, so that its state stays small.
SELECT
  requests.id,
  requests.path,
  responses.status,
  unix_millis(responses.timestamp) - unix_millis(requests.timestamp) AS milliseconds
FROM requests
JOIN responses
  ON requests.id = responses.id
  AND responses.timestamp BETWEEN requests.timestamp AND requests.timestamp + INTERVAL 1 MINUTE
