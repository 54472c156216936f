-- The nodes' own role and database.  The superuser is left without a password: it gets in over the server's socket only.
\getenv password POSTGRES_PASSWORD
CREATE ROLE gateway LOGIN PASSWORD :'password';
CREATE DATABASE gateway OWNER gateway ENCODING 'UTF8' TEMPLATE template0;
ALTER ROLE postgres PASSWORD NULL;
